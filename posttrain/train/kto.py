"""Kahneman-Tversky optimisation (KTO) on a policy's own episodes one by one: the chosen ones of the
pairs are desirable, the rejected ones undesirable.

TRL's `KTOTrainer` (arXiv 2402.01306, eq. 7) on whole multi-turn episodes. With r an episode's gain
in log-likelihood against the first policy, the loss is `desirable_weight` (1 - sigmoid(beta (r -
z))) of a desirable one and `undesirable_weight` (1 - sigmoid(beta (z - r))) of an undesirable one;
a step takes both of each pair.

z is how far the policy has come: the mean gain of mismatched episodes, at least 0, each a task's
prompt, then what the agent wrote and read in the pair before it in the step. TRL takes the mean
over a part of the step, in all processes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from trl import KTOConfig, KTOTrainer

from posttrain.models.codec import TokenRow
from posttrain.train.pair_training import COLUMNS, PairTraining, ReferenceTrainer, RowPair, episode_logprobs, padded
from posttrain.train.policy_params import KtoParams
from posttrain.train.sample_order import IntArray

MATCHED, MISMATCHED = "", "KL_"  # how the names of TRL's columns begin


def kto_trainer(training: PairTraining, params: KtoParams) -> ReferenceTrainer:
    arguments, order = training.arguments(params), training.order(params)
    pairs_per_part = arguments["per_device_train_batch_size"]
    arguments["per_device_train_batch_size"] = 2 * pairs_per_part  # TRL counts episodes
    return _Kto(
        args=KTOConfig(
            **arguments,
            desirable_weight=params.desirable_weight,
            undesirable_weight=params.undesirable_weight,
            precompute_ref_log_probs=True,
            max_length=None,
        ),
        ref_model=training.reference(),
        train_dataset=_episodes(training.pairs, order, batch_size=params.batch_size, pairs_per_part=pairs_per_part),
        data_collator=partial(_collated, pad_id=training.tokenizer.pad_token_id),
        **training.parts(),
    )


def mismatched(row: TokenRow, other: TokenRow) -> TokenRow:
    """The prompt of `row`, which ends where the agent begins, and what follows that of `other`."""
    start, place = row.mask.index(1), other.mask.index(1)
    return TokenRow(
        row.input_ids[:start] + other.input_ids[place:],
        row.mask[:start] + other.mask[place:],
        row.category[:start] + other.category[place:],
    )


def _episodes(pairs: Sequence[RowPair], order: IntArray, *, batch_size: int, pairs_per_part: int) -> Dataset:
    """A row per episode of each step: a part's chosen ones, then its rejected ones, each beside
    the episode that it is mismatched with."""
    rows: dict[str, list[Any]] = {f"{kind}{name}": [] for kind in (MATCHED, MISMATCHED) for name in COLUMNS}
    before = np.roll(order.reshape(-1, batch_size), 1, axis=1).ravel()  # the pair before in the step
    for start in range(0, len(order), pairs_per_part):
        part = slice(start, start + pairs_per_part)
        for side in (0, 1):
            for own, other in zip(order[part], before[part], strict=True):
                row = pairs[own][side]
                for kind, one in ((MATCHED, row), (MISMATCHED, mismatched(row, pairs[other][side]))):
                    rows[f"{kind}input_ids"].append(one.input_ids)
                    rows[f"{kind}mask"].append(one.mask)
    labels = ([True] * pairs_per_part + [False] * pairs_per_part) * (len(order) // pairs_per_part)
    return Dataset.from_dict({**rows, "label": labels})


class _Kto(ReferenceTrainer, KTOTrainer):  # type: ignore[misc]  # trl is untyped
    """KTOTrainer on token ids; logs how many pairs are in the right order."""

    def reference_columns(self, batch: Mapping[str, Tensor]) -> dict[str, list[float]]:
        columns = {}
        for kind in (MATCHED, MISMATCHED):
            own = {name: batch[f"{kind}{name}"] for name in ("input_ids", "completion_mask")}
            columns[f"ref_{kind}logps"] = episode_logprobs(self.model, own)
        return columns

    def compute_loss(
        self,
        model: Callable[..., Any],
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Any:
        logprobs: list[Tensor] = []

        def recording(**arguments: Any) -> Any:
            outputs = model(**arguments)
            logprobs.append(outputs.log_probs.detach().sum(1))
            return outputs

        loss = super().compute_loss(recording, inputs, return_outputs, num_items_in_batch)
        chosen_N, rejected_N = (logprobs[-1] - inputs["ref_logps"]).chunk(2)  # the mismatched ones come first
        is_ordered_N = self.accelerator.gather((chosen_N > rejected_N).float())
        self._metrics["train"]["rewards/accuracies"].append(is_ordered_N.mean().item())
        return loss


def _collated(rows: Sequence[Mapping[str, Any]], *, pad_id: int) -> dict[str, Tensor]:
    """Tensors (2N, T) of a part's rows."""
    batch = {"label": torch.tensor([row["label"] for row in rows])}
    for kind in (MATCHED, MISMATCHED):
        input_ids, masks = ([row[f"{kind}{name}"] for row in rows] for name in COLUMNS)
        batch |= {f"{kind}{name}": tensor for name, tensor in padded(input_ids, masks, pad_id).items()}
        if f"ref_{kind}logps" in rows[0]:
            batch[f"ref_{kind}logps"] = torch.tensor([row[f"ref_{kind}logps"] for row in rows])
    return batch
