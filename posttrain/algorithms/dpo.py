"""Trains a policy on pairs of its own episodes, by direct preference optimisation (DPO). The chosen
one should gain likelihood over the rejected one, against the first policy.

TRL's `DPOTrainer` (arXiv 2305.18290, eq. 7) on whole multi-turn episodes. TRL marks everything
after the prompt as the completion; here the mask is the agent's tokens alone, so that a tool
result, which differs between the two, is never made likelier. The reference's log-probabilities are
computed once, before the first step: the reference never changes and need not stay in memory. Left
out: other losses, length normalisation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from trl import DPOConfig, DPOTrainer

from posttrain.algorithms.processes import is_sharded, parts_of
from posttrain.algorithms.resumable import Resumable, TrainingRun, trainer_arguments
from posttrain.algorithms.row_order import repeated_passes, sort_within_batches
from posttrain.algorithms.sharding import learner_of
from posttrain.algorithms.token_logprobs import IGNORED, agent_logprobs, pad_right
from posttrain.models.codec import TokenRow
from posttrain.models.optimizers import OptimizerKind, build_optimizer
from posttrain.params import DpoParams

SIDES = ("chosen", "rejected")


def train_dpo(
    model: Any,
    tokenizer: Any,
    *,
    pairs: Sequence[tuple[TokenRow, TokenRow]],
    params: DpoParams,
    lr: float,
    optimizer: OptimizerKind,
    checkpoint_every_steps: int,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place on (chosen, rejected) pairs, used in shuffled passes. Resumes from
    `run.checkpoint` where there is one."""
    num_parts, pairs_per_part = parts_of(params.batch_size, "train_policy.algorithm.batch_size")
    learner = learner_of(model, optimizer)
    order = repeated_passes(np.arange(len(pairs)), params.max_steps * params.batch_size, np.random.default_rng(seed))
    order = sort_within_batches(
        order, [max(len(row.input_ids) for row in pair) for pair in pairs], batch_size=params.batch_size
    )
    arguments = DPOConfig(
        **trainer_arguments(
            run, model, max_steps=params.max_steps, checkpoint_every_steps=checkpoint_every_steps, lr=lr, seed=seed
        ),
        lr_scheduler_type="linear",
        per_device_train_batch_size=pairs_per_part,
        gradient_accumulation_steps=num_parts,
        beta=params.beta,
        precompute_ref_log_probs=True,
        max_length=None,
    )
    dataset = Dataset.from_dict(
        {
            f"{side}_{name}": [getattr(pair[index], name) for pair in pairs]
            for index, side in enumerate(SIDES)
            for name in ("input_ids", "mask")
        }
    )
    trainer = _Dpo(
        model=learner,
        whole=model,
        ref_model=learner_of(model, optimizer)
        if is_sharded()
        else None,  # TRL wants one then, which nothing reads, and lets it go
        args=arguments,
        train_dataset=dataset,
        data_collator=_Collator(tokenizer.pad_token_id),
        processing_class=tokenizer,
        optimizer=build_optimizer(learner, optimizer, lr),
        run=run,
    )
    trainer.train_dataset = trainer.train_dataset.select(order)
    trainer.train_or_resume()


class _Dpo(Resumable, DPOTrainer):  # type: ignore[misc]  # trl is untyped
    """DPOTrainer on rows that are token ids already."""

    logged: ClassVar = {
        "loss": "loss",
        "learning_rate": "lr",
        "grad_norm": "grad_norm",
        "entropy": "entropy",
        # share of the step's pairs whose chosen episode gained more than the rejected one
        "rewards/accuracies": "pair_accuracy",
        "rewards/margins": "margin",  # beta times the difference of the two gains
        "rewards/chosen": "margin_chosen",
        "rewards/rejected": "margin_rejected",
    }

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, name: str, batch_size: int) -> Dataset:
        """The model has not been trained yet, nor loaded from a checkpoint: it is its own
        reference. TRL would write the column to a cache file."""
        del name
        sums: dict[str, list[float]] = {side: [] for side in SIDES}
        for start in range(0, len(dataset), batch_size):
            batch = self.data_collator(dataset.select(range(start, min(start + batch_size, len(dataset)))).to_list())
            batch = {key: tensor.to(self.model.device) for key, tensor in batch.items()}
            labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, IGNORED)
            with torch.no_grad():
                chosen, rejected = agent_logprobs(self.model, batch["input_ids"], labels).sum(1).chunk(2)
            sums["chosen"] += chosen.tolist()
            sums["rejected"] += rejected.tolist()
        for side in SIDES:
            dataset = dataset.add_column(f"ref_{side}_logps", sums[side])
        return dataset


class _Collator:
    """Pairs of a step's part to tensors (2N, T): the chosen episodes, then the rejected ones, as
    DPOTrainer halves them."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, pairs: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        input_ids = [pair[f"{side}_input_ids"] for side in SIDES for pair in pairs]
        masks = [pair[f"{side}_mask"] for side in SIDES for pair in pairs]
        batch = {
            "input_ids": pad_right(input_ids, self._pad_id),
            "attention_mask": pad_right([[1] * len(ids) for ids in input_ids], 0),
            "completion_mask": pad_right(masks, 0),
        }
        for side in SIDES:
            if f"ref_{side}_logps" in pairs[0]:
                batch[f"ref_{side}_logps"] = torch.tensor([pair[f"ref_{side}_logps"] for pair in pairs])
        return batch
