"""What a training remembers from step to step besides weights: which tasks came up, what they
earned, what joined, how many tokens were written. All of it is in the checkpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.train.advantages.history import TaskHistory
from posttrain.train.advantages.params import TaskMean, Weighted
from posttrain.train.losses.kl_control import KlWeight
from posttrain.train.online.dev_evaluation import Dev
from posttrain.train.online.episode_groups import EpisodeGroup
from posttrain.train.online.inputs import TrainingInputs
from posttrain.train.online.params import OnlineParams
from posttrain.train.replay.choice import make_joining
from posttrain.train.sampling.choice import make_sampler


class TrainerState:
    """Of the parts that params.yaml chooses, those that remember."""

    def __init__(self, params: OnlineParams, setup: TrainingInputs, *, seed: int) -> None:
        self._params = params
        self.sampler = make_sampler(params.sampling, setup.tasks, seed=seed)
        self.history = TaskHistory(_decay(params))
        self.joining = make_joining(params.join, setup.shown)
        self.kl = KlWeight(params.kl)
        self.dev = Dev(params.dev, setup)
        self.num_generated = 0

    def done_frac(self, step: int) -> float:
        """How much of the training lies behind `step` steps, by whichever of its limits is
        nearer."""
        budget = self._params.max_generated_tokens
        return max(step / self._params.max_steps, self.num_generated / budget if budget else 0.0)

    def observe(self, group: EpisodeGroup) -> None:
        """A group of this step, before the next tasks are chosen."""
        self.num_generated += sum(sum(one.trajectory.mask) for one in group.played)
        kept = [one for one in group.played if not one.is_aborted]
        if len(kept) > 1:
            success = sum(one.is_success for one in kept) / len(kept)
            self.sampler.observe(group.task.task_id, has_spread=group.has_spread, success=success)

    def compared(self, groups: Sequence[EpisodeGroup]) -> None:
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


_PARTS = ("sampler", "history", "joining", "kl", "dev")


def _decay(params: OnlineParams) -> float:
    return params.baseline.decay if isinstance(params.baseline, TaskMean | Weighted) else 0.0
