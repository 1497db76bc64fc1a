"""What a training remembers from step to step besides weights: which tasks came up, what they
earned, what joined, how many tokens were written. All of it is in the checkpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.algorithms.rollouts import ScoredEpisode
from posttrain.rl.adaptive_kl import KlWeight
from posttrain.rl.credit.history import TaskHistory
from posttrain.rl.dev import Dev
from posttrain.rl.joining.best import BestEpisodes
from posttrain.rl.joining.hints import Hints
from posttrain.rl.params import JoinsBest, JoinsExpert, JoinsHints, OnlineParams, TaskMean, Weighted
from posttrain.rl.played import PlayedGroup
from posttrain.rl.sampling.choice import make_sampler
from posttrain.rl.setup import Setup
from posttrain.types import Task


class Memory:
    """Of the parts that params.yaml chooses, those that remember."""

    def __init__(self, params: OnlineParams, setup: Setup, *, seed: int) -> None:
        self._params, self._setup = params, setup
        self.sampler = make_sampler(params.sampling, setup.tasks, seed=seed)
        self.history = TaskHistory(_decay(params))
        self.best = BestEpisodes()
        self.hints = _hints(params)
        self.kl = KlWeight(params.kl)
        self.dev = Dev(params.dev, setup)
        self.num_generated = 0

    def done_frac(self, step: int) -> float:
        """How much of the training lies behind `step` steps, by whichever of its limits is
        nearer."""
        budget = self._params.max_generated_tokens
        return max(step / self._params.max_steps, self.num_generated / budget if budget else 0.0)

    def joined(self, task: Task, played: Sequence[ScoredEpisode]) -> PlayedGroup:
        """The group of `played` and of what joins it."""
        match self._params.join:
            case JoinsExpert(count=count):
                return PlayedGroup(task, played, self._setup.shown(task, count), is_shown=True)
            case JoinsBest():
                return PlayedGroup(task, played, self.best.join(task.task_id, played))
            case _:
                return PlayedGroup(task, played)

    def observe(self, group: PlayedGroup) -> None:
        """A group of this step, before the next tasks are chosen."""
        self.num_generated += sum(sum(one.trajectory.mask) for one in group.played)
        is_won = any(one.is_success for one in group.played)
        self.hints.observe(group.task.task_id, is_won=is_won)
        kept = [one for one in group.played if not one.is_lost]
        if len(kept) > 1:
            success = sum(one.is_success for one in kept) / len(kept)
            self.sampler.observe(group.task.task_id, has_spread=group.has_spread, success=success)

    def compared(self, groups: Sequence[PlayedGroup]) -> None:
        """The step's groups, after they were credited: a baseline must not know their own
        rewards."""
        for one in groups:
            self.history.add(one.task.task_id, one.group.rewards_G[~one.is_joined_G])

    def state(self) -> Mapping[str, object]:
        """As JSON has it, for a checkpoint."""
        parts = {name: getattr(self, name).state() for name in _PARTS}
        return {**parts, "num_generated": self.num_generated}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        for name in _PARTS:
            getattr(self, name).restore(state[name])
        self.num_generated = state["num_generated"]


_PARTS = ("sampler", "history", "best", "hints", "kl", "dev")


def _hints(params: OnlineParams) -> Hints:
    """Of a training without hints, ones that give nothing."""
    match params.join:
        case JoinsHints(start=start, step=step):
            return Hints(start=start, step=step)
        case _:
            return Hints(start=0.0, step=0.0)


def _decay(params: OnlineParams) -> float:
    return params.baseline.decay if isinstance(params.baseline, TaskMean | Weighted) else 0.0
