"""State of a training besides weights and optimizer: which tasks came up, what they earned, what
may be replayed, how many tokens were generated. All of it is in the checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.train.advantages.baselines import TaskMean
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.advantages.history import TaskHistory
from posttrain.train.losses.kl import KlWeight
from posttrain.train.online.dev_evaluation import DevEvaluation
from posttrain.train.online.inputs import TrainingInputs
from posttrain.train.online.params import OnlineParams
from posttrain.train.replay.none import Replay
from posttrain.train.sampling.methods import Sampler
from posttrain.types import ScoredEpisode, Task

_PARTS = ("sampler", "history", "replay", "kl", "dev")


class TrainerState:
    """The parts that params.yaml chooses and that remember something."""

    def __init__(self, params: OnlineParams, inputs: TrainingInputs, *, seed: int) -> None:
        self._params = params
        self.sampler: Sampler = params.sampling.order.make(inputs.tasks, seed=seed)
        self.history = TaskHistory(params.baseline.decay if isinstance(params.baseline, TaskMean) else 0.0)
        self.replay: Replay = params.join.make(inputs.expert)
        self.kl = KlWeight(params.kl)
        self.dev = DevEvaluation(params.dev, inputs)
        self.num_generated = 0

    def done_frac(self, step: int) -> float:
        """Share of the training that is done after `step` steps, by whichever of its limits is
        nearer."""
        budget = self._params.max_generated_tokens
        return max(step / self._params.max_steps, self.num_generated / budget if budget else 0.0)

    def grouped(self, task: Task, episodes: Sequence[ScoredEpisode]) -> EpisodeGroup:
        """The group of a task that was just played, with what is replayed. Sampler, replay and the
        count of tokens observe it, before the next tasks are chosen."""
        group = EpisodeGroup(task, episodes, self.replay.replayed(task, episodes), self.replay.is_expert)
        self.num_generated += sum(sum(one.trajectory.mask) for one in episodes)
        kept = [one for one in episodes if not one.is_aborted]
        if len(kept) > 1:
            success = sum(one.is_success for one in kept) / len(kept)
            self.sampler.observe(task.task_id, has_spread=group.has_spread, success=success)
        return group

    def add_to_history(self, groups: Sequence[EpisodeGroup]) -> None:
        """To be called after the step's advantages: a baseline must not know their own rewards."""
        for one in groups:
            num_played = len(one.group.rewards_G) - len(one.replayed)
            self.history.add(one.task.task_id, one.group.rewards_G[:num_played])

    def state(self) -> Mapping[str, object]:
        """For a checkpoint, in JSON's types."""
        parts = {name: getattr(self, name).state() for name in _PARTS}
        return {**parts, "num_generated": self.num_generated}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned."""
        for name in _PARTS:
            getattr(self, name).restore(state[name])
        self.num_generated = state["num_generated"]
