"""Batches: a step's episodes as padded tensors, with an advantage for each of the agent's tokens
and the log-probability that the engine drew it with."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posttrain.models import distributed
from posttrain.models.token_logprobs import IGNORED, labels_of, pad_right
from posttrain.train.advantages.groups import FloatArray
from posttrain.types import ScoredEpisode

NUM_MICRO_BATCHES = 8  # of a process's share of a step: rows of one length stand together, little is padding


@dataclass(frozen=True, slots=True)
class Sample:
    """An episode with an advantage for each of the agent's tokens. `is_expert`: an expert wrote it,
    so that there are no log-probabilities."""

    episode: ScoredEpisode
    advantages_T: FloatArray
    is_expert: bool = False

    @property
    def is_idle(self) -> bool:
        """True without an advantage anywhere."""
        return not self.advantages_T.any()


@dataclass(frozen=True, slots=True)
class Batch:
    """`input_ids_N_T`, padded on the right; `labels_N_T`, the ids where the agent wrote them and
    `IGNORED` elsewhere; the others of shape (N, T-1), column t belonging to token t+1, 0 where it
    is not the agent's. `lengths_N`: the agent's tokens of each row. `is_expert_N`: an expert wrote
    the row. `places_N`: which of the step's samples each row is."""

    input_ids_N_T: Tensor
    labels_N_T: Tensor
    advantages_N_T: Tensor
    engine_logprobs_N_T: Tensor
    lengths_N: Tensor
    is_expert_N: Tensor
    places_N: Tensor

    @property
    def is_scored_N_T(self) -> Tensor:  # noqa: N802 — a shape is a capital
        """True for the agent's tokens, shape (N, T-1)."""
        return self.labels_N_T[:, 1:] != IGNORED

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))


def batch_of(samples: Sequence[Sample], *, pad_id: int) -> Batch:
    """A row for each sample; two padding tokens for an episode without a token."""
    trajectories = [one.episode.trajectory for one in samples]
    ids = [list(one.token_ids) or [pad_id, pad_id] for one in trajectories]
    masks = [list(one.mask) or [0, 0] for one in trajectories]
    logprobs = [list(one.logprobs) or [0.0] * len(own) for one, own in zip(trajectories, ids, strict=True)]
    labels_N_T = pad_right([labels_of(*both) for both in zip(ids, masks, strict=True)], IGNORED)
    is_scored_N_T = labels_N_T[:, 1:] != IGNORED
    advantages = np.concatenate([one.advantages_T for one in samples])
    return Batch(
        input_ids_N_T=pad_right(ids, pad_id).long(),
        labels_N_T=labels_N_T.long(),
        advantages_N_T=torch.zeros(is_scored_N_T.shape).masked_scatter(
            is_scored_N_T, torch.tensor(advantages, dtype=torch.float32)
        ),
        engine_logprobs_N_T=torch.where(is_scored_N_T, pad_right(logprobs, 0)[:, 1:].float(), 0.0),
        lengths_N=is_scored_N_T.sum(1),
        is_expert_N=torch.tensor([one.is_expert for one in samples]),
        places_N=torch.arange(len(samples)),
    )


def own_micro_batches(samples: Sequence[Sample], pad_id: int, at_once: int | None = None) -> list[Batch]:
    """This process's share of `samples`, in micro-batches of one length, of at most `at_once` rows.
    Every process has as many micro-batches as every other, each with a row."""
    share = len(samples) / distributed.count()
    count = NUM_MICRO_BATCHES if at_once is None else math.ceil(math.ceil(share) / at_once)
    return split_by_length(batch_of(samples, pad_id=pad_id), max(min(count, int(share)), 1))


def split_by_length(batch: Batch, num_micro_batches: int) -> list[Batch]:
    """This process's rows, in micro-batches of rising length, each without the columns that are
    padding in all its rows, as even in number as can be; with fewer rows some are empty."""
    own = np.array_split(np.arange(len(batch.places_N)), distributed.count())[distributed.index()]
    widths_N = (batch.labels_N_T != IGNORED).long() * torch.arange(batch.labels_N_T.shape[1])
    last_N = widths_N.max(1).values[torch.from_numpy(own)]
    return [
        _cut(batch, torch.from_numpy(own)[places], int(last_N[places].max()) + 1 if len(places) else 2)
        for places in torch.argsort(last_N, stable=True).tensor_split(num_micro_batches)
    ]


def by_place(micro_batches: Sequence[Batch], values: Sequence[Tensor]) -> Mapping[int, FloatArray]:
    """Gather `values` (N, T-1) of all processes: for each sample's place a number for each of the
    agent's tokens."""
    own = {
        int(place): value_T[is_scored_T].double().numpy()
        for batch, value_N_T in zip(micro_batches, values, strict=True)
        for place, value_T, is_scored_T in zip(batch.places_N, value_N_T.cpu(), batch.is_scored_N_T, strict=True)
    }
    return {place: value for of_process in distributed.gather(own) for place, value in of_process.items()}


def _cut(batch: Batch, places: Tensor, width: int) -> Batch:
    """Those rows up to `width`: no loss depends on tokens behind the agent's last one."""
    width = max(width, 2)
    return Batch(
        batch.input_ids_N_T[places, :width],
        batch.labels_N_T[places, :width],
        batch.advantages_N_T[places, : width - 1],
        batch.engine_logprobs_N_T[places, : width - 1],
        batch.lengths_N[places],
        batch.is_expert_N[places],
        batch.places_N[places],
    )
