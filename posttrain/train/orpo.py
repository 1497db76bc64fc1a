"""Odds ratio preference optimisation (ORPO) on pairs of a policy's own episodes: fine-tuning on the
chosen one, plus a loss that puts its odds above the rejected one's.

TRL's `ORPOTrainer` (arXiv 2403.07691, eqs. 4 to 7) on whole multi-turn episodes. With p the
geometric mean of the probabilities of an episode's agent tokens, and odds = p / (1 - p), a pair's
loss is -log p of the chosen one - beta log sigmoid(log odds of the chosen - log odds of the
rejected). There is no reference: the first term keeps the policy near where it began. TRL takes it
over the prompt, too, and as a mean over tokens; here it is the paper's, a mean over episodes of
each one's mean, the same for any number of processes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from datasets import disable_progress_bars
from torch import Tensor
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from posttrain.models.token_logprobs import agent_logprobs
from posttrain.train.pair_training import PairTraining, batch_labels, pair_collator, pair_dataset
from posttrain.train.policy_params import OrpoParams
from posttrain.train.resumable_trainer import Resumable

LEAST_DOUBT = 1e-6  # in nats per token; below it an episode's odds are taken for those there


def orpo_trainer(training: PairTraining, params: OrpoParams) -> Resumable:
    disable_progress_bars()  # of TRL's passes over the rows, which change nothing
    return _Orpo(
        args=ORPOConfig(
            **training.arguments(params),
            max_length=max(len(row.input_ids) for pair in training.pairs for row in pair),
        ),
        train_dataset=pair_dataset(training.pairs).select(training.order(params)),
        data_collator=pair_collator(training.tokenizer),
        **training.parts(),
    )


class _Orpo(Resumable, ORPOTrainer):  # type: ignore[misc]  # trl is untyped
    is_of_pairs: ClassVar = True
    logged: ClassVar = {
        "loss": "loss",
        "learning_rate": "lr",
        "grad_norm": "grad_norm",
        "nll_loss": "loss_chosen",  # the first term
        "log_odds_chosen": "log_odds",  # of the chosen less those of the rejected
        # share of the step's pairs whose chosen episode is the likelier one, per token
        "rewards/accuracies": "pair_accuracy",
        "rewards/margins": "margin",  # beta times the difference of the two, per token
        "rewards/chosen": "margin_chosen",
        "rewards/rejected": "margin_rejected",
    }

    @staticmethod
    def tokenize_row(row: dict[str, Any]) -> dict[str, Any]:
        return row  # token ids already

    def concatenated_forward(self, model: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Mean log-probs of the chosen and the rejected, (N,), again in the place of logits, of
        which TRL only logs a mean; and the first term."""
        labels_2N_T = batch_labels(batch)
        sums_2N = agent_logprobs(model, batch["input_ids"], labels_2N_T).sum(1)
        means_2N = sums_2N / batch["completion_mask"].sum(1)
        loss = -means_2N.chunk(2)[0].mean()
        # TRL's log(1 - p) has no gradient but NaN at p = 1
        chosen_N, rejected_N = means_2N.clamp(max=-LEAST_DOUBT).chunk(2)
        return chosen_N, rejected_N, chosen_N, rejected_N, loss
