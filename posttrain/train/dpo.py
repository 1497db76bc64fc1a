"""Direct preference optimisation (DPO) on pairs of a policy's own episodes: the chosen one should
gain likelihood over the rejected one, against the first policy.

TRL's `DPOTrainer` (arXiv 2305.18290) on whole multi-turn episodes. With d the chosen episode's gain
in log-likelihood less the rejected one's, the loss of a pair is one of:

- `sigmoid`: -log sigmoid(beta d) (eq. 7).
- `hinge`: max(0, 1 - beta d) (SLiC, arXiv 2305.10425): 0 once the pair is 1 / beta apart.
- `ipo`: (d' - 1 / (2 beta))^2, d' of gains per agent token (IPO, arXiv 2310.12036, eq. 17): a pair
  is to be so far apart and no farther, where a sigmoid never has enough.

Left out: TRL's other losses, length normalisation.
"""

from collections.abc import Mapping

from torch import Tensor
from trl import DPOConfig, DPOTrainer

from posttrain.train.pair_training import PairCollator, PairTraining, ReferenceTrainer, episode_logprobs, pair_dataset
from posttrain.train.policy_params import DpoParams


def dpo_trainer(training: PairTraining, params: DpoParams) -> ReferenceTrainer:
    trainer = _Dpo(
        args=DPOConfig(
            **training.arguments(params), loss_type=params.loss, precompute_ref_log_probs=True, max_length=None
        ),
        ref_model=training.reference(),
        train_dataset=pair_dataset(training.pairs),
        data_collator=PairCollator(training.tokenizer.pad_token_id),
        **training.parts(),
    )
    # after the reference's log-probs were computed: once for each pair, not for each of its uses
    trainer.train_dataset = trainer.train_dataset.select(training.order(params))
    return trainer


class _Dpo(ReferenceTrainer, DPOTrainer):  # type: ignore[misc]  # trl is untyped
    def reference_columns(self, batch: Mapping[str, Tensor]) -> dict[str, list[float]]:
        logprobs_2N = episode_logprobs(self.model, batch)
        num_pairs = len(logprobs_2N) // 2
        return {"ref_chosen_logps": logprobs_2N[:num_pairs], "ref_rejected_logps": logprobs_2N[num_pairs:]}
