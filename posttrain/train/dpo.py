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

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from trl import DPOConfig, DPOTrainer

from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import OptimizerKind
from posttrain.models.sharding import learner_of
from posttrain.train.pair_training import (
    PairCollator,
    ReferenceTrainer,
    RowPair,
    episode_logprobs,
    pair_arguments,
    pair_dataset,
    pair_order,
    reference_of,
)
from posttrain.train.policy_params import DpoParams
from posttrain.train.resumable_trainer import TrainingRun


def train_dpo(
    model: Any,
    tokenizer: Any,
    *,
    pairs: Sequence[RowPair],
    params: DpoParams,
    lr: float,
    optimizer: OptimizerKind,
    checkpoint_every_steps: int,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place on (chosen, rejected) pairs, used in shuffled passes. Resumes from
    `run.checkpoint` where there is one."""
    learner = learner_of(model, optimizer)
    arguments = DPOConfig(
        **pair_arguments(run, model, params, lr=lr, checkpoint_every_steps=checkpoint_every_steps, seed=seed),
        loss_type=params.loss,
        precompute_ref_log_probs=True,
        max_length=None,
    )
    trainer = _Dpo(
        model=learner,
        whole=model,
        ref_model=reference_of(model, optimizer),
        args=arguments,
        train_dataset=pair_dataset(pairs),
        data_collator=PairCollator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        optimizer=build_optimizer(learner, optimizer, lr),
        run=run,
    )
    trainer.train_dataset = trainer.train_dataset.select(pair_order(pairs, params, seed=seed))
    trainer.train_or_resume()


class _Dpo(ReferenceTrainer, DPOTrainer):  # type: ignore[misc]  # trl is untyped
    """DPOTrainer on rows that are token ids already."""

    def reference_columns(self, batch: Mapping[str, Tensor]) -> dict[str, list[float]]:
        logprobs_2N = episode_logprobs(self.model, batch)
        num_pairs = len(logprobs_2N) // 2
        return {"ref_chosen_logps": logprobs_2N[:num_pairs], "ref_rejected_logps": logprobs_2N[num_pairs:]}
