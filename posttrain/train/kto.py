"""Kahneman-Tversky optimisation (KTO) on episodes one by one, each desirable or not: thumbs of
people, and the sides of pairs.

TRL's `KTOTrainer` (arXiv 2402.01306, eq. 7) on whole multi-turn episodes. With r an episode's gain
in log-likelihood against the first policy, the loss is `desirable_weight` (1 - sigmoid(beta (r -
z))) of a desirable one and `undesirable_weight` (1 - sigmoid(beta (z - r))) of an undesirable one.

z is how far the policy has come: the mean gain of mismatched episodes, at least 0, each a task's
prompt, then what the agent wrote and read in the episode before it in the step. TRL takes the mean
over a micro-batch, in all processes; with `model.tokens_at_once` it is over the step.
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
from posttrain.models.distributed import gather
from posttrain.train.pair_training import COLUMNS, PairTraining, ReferenceTrainer, episode_logprobs, padded
from posttrain.train.policy_params import KtoParams
from posttrain.train.sample_order import drawn_by_length

MATCHED, MISMATCHED = "", "KL_"  # how the names of TRL's columns begin


def kto_trainer(training: PairTraining, params: KtoParams) -> ReferenceTrainer:
    arguments = training.arguments(params)
    arguments["per_device_train_batch_size"] *= 2  # TRL counts episodes
    return _Kto(
        args=KTOConfig(
            **arguments,
            desirable_weight=params.desirable_weight,
            undesirable_weight=params.undesirable_weight,
            precompute_ref_log_probs=True,
            max_length=None,
        ),
        ref_model=training.reference(),
        train_dataset=_episodes(training, params),
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


def _episodes(training: PairTraining, params: KtoParams) -> Dataset:
    """A row per episode of each step, beside the episode that it is mismatched with."""
    given = [(pair[side], side == 0) for pair in training.pairs for side in (0, 1)] + list(training.verdicts)
    weights = [weight for weight in training.weights or [1.0] * len(training.pairs) for _ in (0, 1)]
    weights += [weights[-1] if weights else 1.0] * len(training.verdicts)  # like an imported pair, which come last
    size = 2 * params.batch_size
    lengths = [len(row.input_ids) for row, _ in given]
    order = drawn_by_length(lengths, weights, params.max_steps, size, seed=training.seed)
    before = np.roll(order.reshape(-1, size), 1, axis=1).ravel()
    rows: dict[str, list[Any]] = {f"{kind}{name}": [] for kind in (MATCHED, MISMATCHED) for name in COLUMNS}
    for own, other in zip(order, before, strict=True):
        row = given[own][0]
        for kind, one in ((MATCHED, row), (MISMATCHED, mismatched(row, given[other][0]))):
            rows[f"{kind}input_ids"].append(one.input_ids)
            rows[f"{kind}mask"].append(one.mask)
    return Dataset.from_dict({**rows, "label": [given[own][1] for own in order]})


class _Kto(ReferenceTrainer, KTOTrainer):  # type: ignore[misc]  # trl is untyped
    """KTOTrainer on token ids; logs how often, of a desirable and an undesirable episode of a part,
    the first gained more."""

    _step_gain: float | None = None  # z of a step that is cut by tokens

    def reference_columns(self, batch: Mapping[str, Tensor]) -> dict[str, list[float]]:
        columns = {}
        for kind in (MATCHED, MISMATCHED):
            own = {name: batch[f"{kind}{name}"] for name in ("input_ids", "completion_mask")}
            columns[f"ref_{kind}logps"] = episode_logprobs(self.model, own)
        return columns

    def learn_parts(self, model: Any, parts: Sequence[Mapping[str, Tensor]], sizes: Sequence[int]) -> Tensor:
        self._step_gain = None
        gains = [(self._compute_kl_logps(model, part) - part["ref_KL_logps"]).double() for part in parts]
        own = float(torch.cat(gains).sum()), sum(sizes)
        total, num_rows = np.sum(gather(own), axis=0)
        self._step_gain = float(total / num_rows)
        loss: Tensor = super().learn_parts(model, parts, sizes)
        return loss

    def _compute_kl_logps(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        if self._step_gain is not None:
            return torch.full_like(batch["ref_KL_logps"], self._step_gain)
        logprobs: Tensor = super()._compute_kl_logps(model, batch)
        return logprobs

    def compute_loss(
        self,
        model: Callable[..., Any],
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Any:
        logprobs: list[Tensor] = []
        if self._step_gain is not None:  # what TRL subtracts from it is in it
            inputs = {**inputs, "ref_KL_logps": torch.zeros_like(inputs["ref_KL_logps"])}

        def recording(**arguments: Any) -> Any:
            outputs = model(**arguments)
            logprobs.append(outputs.log_probs.detach().sum(1))
            return outputs

        loss = super().compute_loss(recording, inputs, return_outputs, num_items_in_batch)
        gains_N, is_good_N = logprobs[-1] - inputs["ref_logps"], inputs["label"].bool()  # the mismatched come first
        is_ordered = (gains_N[is_good_N, None] > gains_N[~is_good_N]).float()
        if bool((share := self.accelerator.gather(is_ordered.mean()).nanmean()).isfinite()):
            self._metrics["train"]["rewards/accuracies"].append(share.item())
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
