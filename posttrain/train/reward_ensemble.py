"""One or several reward models as one score: the mean, the lowest, or the mean less their variance.

A policy that is trained by a reward model finds what the model is wrong about. Several that learnt
from other draws of the tasks are seldom wrong about the same, and a pessimistic bound of their
scores gives no reward where they disagree (arXiv 2310.02743); the plain mean does.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.models.params import Dtype
from posttrain.train.reward_bound import Bound, FloatArray, MeanBound
from posttrain.train.reward_model import load_reward_model, score_episodes

SCALE = "scale.json"  # in a member's folder: mean and deviation of its scores on the sampled episodes


@dataclass(frozen=True, slots=True)
class RewardModels:
    """Members, each with the mean and deviation of its scores, in units of which they compare."""

    members: Sequence[Any]
    scales: Sequence[tuple[float, float]]
    bound: Bound = MeanBound(type="mean")  # noqa: RUF009  # frozen

    @property
    def unit(self) -> float:
        """Logits of a score of 1, over the members: sigmoid(`unit` · difference) is the probability
        that the better of two wins."""
        return float(np.mean([deviation for _, deviation in self.scales]))

    def member_scores(self, token_ids_N: Sequence[Sequence[int]]) -> FloatArray:
        """Shape (members, episodes), in units of each member's deviation."""
        scores = [np.array(score_episodes(member, token_ids_N), dtype=np.float64) for member in self.members]
        return np.stack([(one - mean) / std for one, (mean, std) in zip(scores, self.scales, strict=True)])

    def score(self, token_ids_N: Sequence[Sequence[int]]) -> FloatArray:
        """The bound of the members' scores of each episode."""
        return self.bound.of(self.member_scores(token_ids_N))


def scale_of(model: Any, token_ids_N: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Mean and deviation of a model's scores of these episodes; a deviation of 1 where they are
    equal."""
    scores = np.array(score_episodes(model, token_ids_N))
    return float(scores.mean()), float(scores.std()) or 1.0


def write_scale(folder: Path, scale: tuple[float, float]) -> None:
    (folder / SCALE).write_text(json.dumps({"mean": scale[0], "std": scale[1]}) + "\n", encoding="utf-8")


def member_folder(folder: Path, number: int) -> Path:
    """A member's own folder, from 1; the first's is that of the whole."""
    return folder if number == 1 else folder / f"member-{number}"


def load_reward_models(folder: Path, bound: Bound, *, dtype: Dtype = "float32") -> RewardModels:
    """The members in a folder, in evaluation mode."""
    folders = [folder, *sorted(folder.glob("member-*"), key=lambda one: int(one.name.partition("-")[2]))]
    told = [json.loads((one / SCALE).read_text(encoding="utf-8")) for one in folders]
    members = [load_reward_model(one, dtype=dtype) for one in folders]
    return RewardModels(members, [(one["mean"], one["std"]) for one in told], bound)
