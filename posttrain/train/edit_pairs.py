"""Preference pairs of verified edits."""

from collections.abc import Sequence

from posttrain.data.edits import VerifiedEdit
from posttrain.data.preferences import Pair, Said
from posttrain.data.schemas import trajectory_row
from posttrain.evals.groups import ROUNDING
from posttrain.rollout.episode_sampler import ScoredWorld
from posttrain.train.preference_pairs import reward_gap


def edit_pairs(edits: Sequence[VerifiedEdit], world: ScoredWorld) -> list[Pair]:
    """A pair of each edit: the branch behind it over the recorded episode. None of one that the
    world's reward does not prefer."""
    pairs = []
    for edit in edits:
        scored = [world.reward.score(one, edit.task) for one in edit.pair()]
        chosen, rejected = (trajectory_row(one, edit.task, world.domain.tools) for one in scored)
        pairs.append(Pair(chosen, rejected, Said("edit", edit.who)))
    return [pair for pair in pairs if reward_gap(pair) > ROUNDING]
