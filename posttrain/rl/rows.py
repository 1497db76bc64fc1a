"""The episodes of a step as rows of tensors: what was read and written, and for each token of the
agent's its advantage and the log-probability that the engine drew it with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.algorithms.rollouts import ScoredEpisode
from posttrain.algorithms.token_logprobs import IGNORED, labels_of, pad_right


@dataclass(frozen=True, slots=True)
class Rows:
    """`input_ids_N_T`, padded on the right; `labels_N_T`, the ids where the agent wrote them and
    `IGNORED` elsewhere; the others of shape (N, T-1), column t belonging to token t+1, 0 where it
    is not the agent's. `lengths_N`: the agent's tokens of each row."""

    input_ids_N_T: Tensor
    labels_N_T: Tensor
    advantages_N_T: Tensor
    engine_logprobs_N_T: Tensor
    lengths_N: Tensor

    @property
    def is_scored_N_T(self) -> Tensor:  # noqa: N802 — a shape is a capital
        """Whether the token is the agent's, shape (N, T-1)."""
        return self.labels_N_T[:, 1:] != IGNORED

    def to(self, device: torch.device) -> "Rows":
        return Rows(*(getattr(self, name).to(device) for name in self.__slots__))


def rows_of(episodes: Sequence[ScoredEpisode], advantages: Sequence[float], *, pad_id: int) -> Rows:
    """One row for each. A lost episode without a token becomes one of two padding tokens."""
    played = [one.trajectory for one in episodes]
    ids = [list(one.token_ids) or [pad_id, pad_id] for one in played]
    masks = [list(one.mask) or [0, 0] for one in played]
    logprobs = [list(one.logprobs) or [0.0, 0.0] for one in played]
    labels_N_T = pad_right([labels_of(*both) for both in zip(ids, masks, strict=True)], IGNORED)
    is_scored_N_T = labels_N_T[:, 1:] != IGNORED
    advantages_N_1 = torch.tensor(advantages, dtype=torch.float32)[:, None]
    return Rows(
        input_ids_N_T=pad_right(ids, pad_id).long(),
        labels_N_T=labels_N_T.long(),
        advantages_N_T=torch.where(is_scored_N_T, advantages_N_1, 0.0),
        engine_logprobs_N_T=torch.where(is_scored_N_T, pad_right(logprobs, 0)[:, 1:].float(), 0.0),
        lengths_N=is_scored_N_T.sum(1),
    )


def parts_by_length(rows: Rows, num_parts: int) -> list[Rows]:
    """The rows in `num_parts` parts of rising length, each without the columns that are padding in
    all its rows. The parts are as even as can be; with fewer rows some are empty."""
    widths_N = (rows.labels_N_T != IGNORED).long() * torch.arange(rows.labels_N_T.shape[1])
    last_N = widths_N.max(1).values
    return [
        _cut(rows, places, int(last_N[places].max()) + 1 if len(places) else 2)
        for places in torch.argsort(last_N, stable=True).tensor_split(num_parts)
    ]


def _cut(rows: Rows, places: Tensor, width: int) -> Rows:
    """What stands behind the agent's last token tells nothing."""
    width = max(width, 2)
    return Rows(
        rows.input_ids_N_T[places, :width],
        rows.labels_N_T[places, :width],
        rows.advantages_N_T[places, : width - 1],
        rows.engine_logprobs_N_T[places, : width - 1],
        rows.lengths_N[places],
    )
