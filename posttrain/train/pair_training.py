"""What the three trainers on pairs share: their arguments, the order of the pairs, their tensors,
and the log-probabilities of the first policy.

TRL marks everything after the prompt as the completion; here the mask is the agent's tokens alone,
so that a tool result, which differs between the two episodes, is never made likelier. The first
policy's log-probabilities are computed once, before the first step: it never changes and need not
stay in memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from posttrain.models.codec import TokenRow
from posttrain.models.distributed import is_sharded, pair_parts
from posttrain.models.params import OptimizerKind
from posttrain.models.sharding import learner_of
from posttrain.models.token_logprobs import IGNORED, agent_logprobs, pad_right
from posttrain.train.params import DpoParams, KtoParams, OrpoParams
from posttrain.train.resumable_trainer import TrainingRun, trainer_arguments
from posttrain.train.sample_order import IntArray, repeated_passes, sort_within_batches

SIDES = ("chosen", "rejected")
COLUMNS = ("input_ids", "mask")

RowPair = tuple[TokenRow, TokenRow]  # chosen, rejected


def pair_arguments(
    run: TrainingRun,
    model: Any,
    params: DpoParams | KtoParams | OrpoParams,
    *,
    lr: float,
    checkpoint_every_steps: int,
    seed: int,
) -> dict[str, Any]:
    """Of each of the three; a rate that falls to 0 in a line."""
    num_parts, pairs_per_part = pair_parts(params.batch_size, "train_policy.algorithm.batch_size", run.rows_at_once)
    common = trainer_arguments(
        run, model, max_steps=params.max_steps, checkpoint_every_steps=checkpoint_every_steps, lr=lr, seed=seed
    )
    return {
        **common,
        "lr_scheduler_type": "linear",
        "per_device_train_batch_size": pairs_per_part,
        "gradient_accumulation_steps": num_parts,
        "beta": params.beta,
    }


def pair_order(pairs: Sequence[RowPair], params: DpoParams | KtoParams | OrpoParams, *, seed: int) -> IntArray:
    """The pairs of all steps, shape (max_steps * batch_size,): shuffled passes over all of them,
    the longest of a step first."""
    count = params.max_steps * params.batch_size
    order = repeated_passes(np.arange(len(pairs)), count, np.random.default_rng(seed))
    lengths = [max(len(row.input_ids) for row in pair) for pair in pairs]
    return sort_within_batches(order, lengths, batch_size=params.batch_size)


def pair_dataset(pairs: Sequence[RowPair]) -> Dataset:
    """A row for each pair: `chosen_input_ids`, `chosen_mask` and the rejected one's."""
    return Dataset.from_dict(
        {
            f"{side}_{name}": [getattr(pair[index], name) for pair in pairs]
            for index, side in enumerate(SIDES)
            for name in COLUMNS
        }
    )


def reference_of(model: Any, optimizer: OptimizerKind) -> Any:
    """None, the model being its own reference before its first step; where it is sharded TRL wants
    one, which nothing reads, and lets it go."""
    return learner_of(model, optimizer) if is_sharded() else None


def episode_logprobs(model: Any, batch: Mapping[str, Tensor]) -> list[float]:
    """Of each row the log-probability of the agent's tokens, summed, by the weights as they are."""
    input_ids = batch["input_ids"].to(model.device)
    with torch.no_grad():
        sums: list[float] = agent_logprobs(model, input_ids, batch_labels(batch).to(model.device)).sum(1).tolist()
    return sums


def batch_labels(batch: Mapping[str, Tensor]) -> Tensor:
    """The ids where the agent wrote them, `IGNORED` elsewhere."""
    return batch["input_ids"].masked_fill(batch["completion_mask"] == 0, IGNORED)


def padded(input_ids: Sequence[Sequence[int]], masks: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """Tensors (N, T) as TRL names them; `completion_mask` is 1 at the agent's tokens."""
    return {
        "input_ids": pad_right(input_ids, pad_id),
        "attention_mask": pad_right([[1] * len(ids) for ids in input_ids], 0),
        "completion_mask": pad_right(masks, 0),
    }


class PairCollator:
    """Pairs of a step's part to tensors (2N, T): the chosen episodes, then the rejected ones, as
    TRL halves them."""

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, pairs: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        input_ids, masks = ([pair[f"{side}_{name}"] for side in SIDES for pair in pairs] for name in COLUMNS)
        batch = padded(input_ids, masks, self._pad_id)
        for side in SIDES:
            if f"ref_{side}_logps" in pairs[0]:
                batch[f"ref_{side}_logps"] = torch.tensor([pair[f"ref_{side}_logps"] for pair in pairs])
        return batch
