"""Episodes of the policy in training: sampled, scored by rules and, where it has a weight, by the
reward model."""

import math
from collections.abc import Sequence
from typing import Any

from posttrain.rollout.engines.choice import is_elsewhere
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.rollout.expert_traces import ExpertTraces, given_turns
from posttrain.train.reward_model import score_episodes
from posttrain.types import ScoredEpisode, Task, Trajectory


class PolicyEpisodes:
    """An `EpisodeSource`. The reward model's score s adds weight · sigmoid(s) to an episode's
    reward. `traces`: an expert's, for hints and replay."""

    def __init__(
        self,
        sampler: EpisodeSampler,
        *,
        reward_model: Any = None,
        weight: float = 0.0,
        traces: ExpertTraces | None = None,
    ) -> None:
        self._sampler, self._reward_model, self._weight = sampler, reward_model, weight
        self._traces = traces

    @property
    def is_elsewhere(self) -> bool:
        return is_elsewhere()

    def refresh(self) -> None:
        self._sampler.refresh()

    def sleep(self) -> None:
        self._sampler.sleep()

    def run(
        self, tasks: Sequence[Task], seeds: Sequence[int], *, prefix_fracs: Sequence[float] = ()
    ) -> list[ScoredEpisode]:
        given = given_turns(self._traces, tasks, prefix_fracs) if self._traces is not None and prefix_fracs else ()
        return self._scored(self._sampler.sample(tasks, seeds, given=given))

    def play_greedily(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[ScoredEpisode]:
        """At temperature 0, by the weights as they are now."""
        self._sampler.refresh()
        episodes = self._scored(self._sampler.sample(tasks, seeds, temperature=0.0))
        self._sampler.sleep()
        return episodes

    def expert(self, task: Task, count: int) -> list[ScoredEpisode]:
        """`count` of the expert's traces, scored as episodes are. Only where there are traces."""
        assert self._traces is not None
        return self._scored(self._traces.traces(task, count))

    def _scored(self, trajectories: Sequence[Trajectory]) -> list[ScoredEpisode]:
        scores = [0.0] * len(trajectories)
        if self._reward_model is not None:
            scores = score_episodes(self._reward_model, [trajectory.token_ids for trajectory in trajectories])
        return [
            ScoredEpisode(trajectory, bonus=self._weight / (1 + math.exp(-score)))
            for trajectory, score in zip(trajectories, scores, strict=True)
        ]
