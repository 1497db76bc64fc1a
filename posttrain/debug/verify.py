"""Verifies edits of agents' messages: an edit counts where the policy itself then does better.

The policy plays on n times from the turn as it was recorded, and n times behind the edited message.
An edit is kept only where the mean of strict success is higher.
"""

from collections.abc import Sequence
from dataclasses import replace

from posttrain.data.edits import VerifiedEdit
from posttrain.debug.player import Player
from posttrain.rollout.play_on import Branch, Fork
from posttrain.runtime.exits import ConfigurationError

FORBIDDEN_SPLITS = ("test", "test_paraphrase", "test_noisy")


def verify(
    forks: Sequence[Fork], player: Player, *, who: str, num: int = 8, seed: int = 0, code: str = ""
) -> list[VerifiedEdit | tuple[bool, ...]]:
    """Verify the edit of each fork, all plays at once; of one that does not help, only the outcomes
    behind it. Raises ConfigurationError for a fork without an edited message, and of a task that is
    held out: its edits would be training on the test."""
    for fork in forks:
        if fork.message is None or fork.results:
            raise ConfigurationError("an edit that is verified is of the agent's own message, and of nothing else")
        if fork.task.split in FORBIDDEN_SPLITS:
            raise ConfigurationError(
                f"task {fork.task.task_id} is of the split {fork.task.split}, which nothing may be trained on"
            )
    plays = [
        replace(fork, message=message, num=num, seed=2 * seed + (message is not None))
        for fork in forks
        for message in (None, fork.message)
    ]
    branches = player.branches(plays)
    groups = [branches[start : start + num] for start in range(0, len(branches), num)]
    return [
        _verified(fork, before, after, who=who, model=player.name, code=code)
        for fork, before, after in zip(forks, groups[::2], groups[1::2], strict=True)
    ]


def _verified(
    fork: Fork, before: Sequence[Branch], after: Sequence[Branch], *, who: str, model: str, code: str
) -> VerifiedEdit | tuple[bool, ...]:
    """An aborted play says nothing of the agent and is left out."""
    assert fork.message is not None
    found = [tuple(one.is_strict_success for one in side if not one.trajectory.is_aborted) for side in (before, after)]
    if not all(found) or sum(found[1]) / len(found[1]) <= sum(found[0]) / len(found[0]):
        return found[1]
    played_on = next(one.trajectory for one in after if one.is_strict_success)
    return VerifiedEdit(
        fork.task, fork.trajectory, fork.at, fork.message, who, found[0], found[1], played_on, model, code
    )
