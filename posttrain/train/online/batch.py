"""The episodes of a step as rows of tensors: what was read and written, and for each token of the
agent's its advantage and the log-probability that the engine drew it with.
"""

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

NUM_PARTS = 8  # of a process's share of a step: rows of one length stand together, and little of a part is padding


@dataclass(frozen=True, slots=True)
class Member:
    """An episode of a group, with an advantage for each of the agent's tokens. `is_shown`: an
    expert wrote it, and nobody knows how likely."""

    episode: ScoredEpisode
    advantages_T: FloatArray
    is_shown: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is learnt from it."""
        return not self.advantages_T.any()


@dataclass(frozen=True, slots=True)
class Rows:
    """`input_ids_N_T`, padded on the right; `labels_N_T`, the ids where the agent wrote them and
    `IGNORED` elsewhere; the others of shape (N, T-1), column t belonging to token t+1, 0 where it
    is not the agent's. `lengths_N`: the agent's tokens of each row. `is_shown_N`: an expert's.
    `places_N`: which of the step's members each is."""

    input_ids_N_T: Tensor
    labels_N_T: Tensor
    advantages_N_T: Tensor
    engine_logprobs_N_T: Tensor
    lengths_N: Tensor
    is_shown_N: Tensor
    places_N: Tensor

    @property
    def is_scored_N_T(self) -> Tensor:  # noqa: N802 — a shape is a capital
        """Whether the token is the agent's, shape (N, T-1)."""
        return self.labels_N_T[:, 1:] != IGNORED

    def to(self, device: torch.device) -> "Rows":
        return Rows(*(getattr(self, name).to(device) for name in self.__slots__))


def rows_of(members: Sequence[Member], *, pad_id: int) -> Rows:
    """One row for each. A lost episode without a token becomes one of two padding tokens."""
    played = [one.episode.trajectory for one in members]
    ids = [list(one.token_ids) or [pad_id, pad_id] for one in played]
    masks = [list(one.mask) or [0, 0] for one in played]
    logprobs = [list(one.logprobs) or [0.0] * len(own) for one, own in zip(played, ids, strict=True)]
    labels_N_T = pad_right([labels_of(*both) for both in zip(ids, masks, strict=True)], IGNORED)
    is_scored_N_T = labels_N_T[:, 1:] != IGNORED
    advantages = np.concatenate([one.advantages_T for one in members])
    return Rows(
        input_ids_N_T=pad_right(ids, pad_id).long(),
        labels_N_T=labels_N_T.long(),
        advantages_N_T=torch.zeros(is_scored_N_T.shape).masked_scatter(
            is_scored_N_T, torch.tensor(advantages, dtype=torch.float32)
        ),
        engine_logprobs_N_T=torch.where(is_scored_N_T, pad_right(logprobs, 0)[:, 1:].float(), 0.0),
        lengths_N=is_scored_N_T.sum(1),
        is_shown_N=torch.tensor([one.is_shown for one in members]),
        places_N=torch.arange(len(members)),
    )


def own_parts(members: Sequence[Member], pad_id: int, at_once: int | None = None) -> list[Rows]:
    """This process's share of `members`, in parts of one length, of at most `at_once` rows. Every
    process has as many parts as every other, each with a row."""
    share = len(members) / distributed.count()
    num_parts = NUM_PARTS if at_once is None else math.ceil(math.ceil(share) / at_once)
    num_parts = max(min(num_parts, int(share)), 1)
    return parts_by_length(rows_of(members, pad_id=pad_id), num_parts)


def parts_by_length(rows: Rows, num_parts: int) -> list[Rows]:
    """This process's of the rows, in `num_parts` parts of rising length, each without the columns
    that are padding in all its rows. The parts are as even as can be; with fewer rows some are
    empty."""
    own = np.array_split(np.arange(len(rows.places_N)), distributed.count())[distributed.index()]
    widths_N = (rows.labels_N_T != IGNORED).long() * torch.arange(rows.labels_N_T.shape[1])
    last_N = widths_N.max(1).values[torch.from_numpy(own)]
    return [
        _cut(rows, torch.from_numpy(own)[places], int(last_N[places].max()) + 1 if len(places) else 2)
        for places in torch.argsort(last_N, stable=True).tensor_split(num_parts)
    ]


def by_place(parts: Sequence[Rows], values: Sequence[Tensor]) -> Mapping[int, FloatArray]:
    """A number for each of the agent's tokens, of all processes' rows, by the row's place."""
    own = {
        int(place): value_T[is_scored_T].double().numpy()
        for part, value_N_T in zip(parts, values, strict=True)
        for place, value_T, is_scored_T in zip(part.places_N, value_N_T.cpu(), part.is_scored_N_T, strict=True)
    }
    return {place: value for of_process in distributed.gather(own) for place, value in of_process.items()}


def _cut(rows: Rows, places: Tensor, width: int) -> Rows:
    """What stands behind the agent's last token tells nothing."""
    width = max(width, 2)
    return Rows(
        rows.input_ids_N_T[places, :width],
        rows.labels_N_T[places, :width],
        rows.advantages_N_T[places, : width - 1],
        rows.engine_logprobs_N_T[places, : width - 1],
        rows.lengths_N[places],
        rows.is_shown_N[places],
        rows.places_N[places],
    )
