"""Samples scored episodes from a model: an engine over its live weights, the world, and the rule
reward."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from posttrain.models.codec import ChatCodec
from posttrain.rewards.params import RewardParams
from posttrain.rewards.total import RuleReward, load_reward
from posttrain.rollout.asynchronous import Gate, GatedEngine
from posttrain.rollout.engines.choice import make_engine
from posttrain.rollout.engines.protocol import Engine
from posttrain.rollout.episodes import refuse_many_aborted, run_beside, run_episodes
from posttrain.rollout.offers import open_domain
from posttrain.rollout.params import AgentParams
from posttrain.rollout.policy import Policy, TokenPolicy
from posttrain.rollout.prefix import PrefixPolicy
from posttrain.rollout.roles import OtherPlayers
from posttrain.types import Message, Task, Trajectory
from posttrain.worlds.catalog import score_names
from posttrain.worlds.params import WorldParams
from posttrain.worlds.protocol import Domain

NUM_CHECKS = 100  # prompts on which an engine elsewhere must agree with the trainer


class EpisodeSampler:
    """Runs and scores episodes by the model's weights at the last `refresh` or, without one, at the
    first `sample`. With `takes_weights` the engine takes them from the model, once and for all.
    `engine`: one that is made already; without it the environment names one."""

    def __init__(
        self,
        model: Any,
        codec: ChatCodec,
        *,
        domain: Domain,
        reward: RuleReward,
        limits: AgentParams,
        temperature: float,
        takes_weights: bool = False,
        engine: Engine | None = None,
    ) -> None:
        self._takes_weights = takes_weights
        self.codec, self.domain, self.limits = codec, domain, limits
        self._model, self._reward, self._temperature = model, reward, temperature
        self._engine = engine
        self._others = OtherPlayers(limits)

    def refresh(self) -> None:
        """Copy the model's current weights into the engine, which the first call makes."""
        if self._engine is None:
            self._engine = make_engine(
                self._model,
                max_context_tokens=self.limits.max_context_tokens,
                check_prompts=lambda: check_prompts(self.codec, self.domain),
                stop_ids=self.codec.stop_ids,
                takes_weights=self._takes_weights,
                message_seconds=self.limits.max_seconds,
            )
        else:
            self._engine.refresh_weights()

    def sleep(self) -> None:
        """Free the memory until the next `refresh`."""
        if self._engine is not None:
            self._engine.sleep()

    def policy(self, temperature: float | None = None) -> TokenPolicy:
        """The model as a policy, at `temperature` in place of the sampler's own."""
        temperature = self._temperature if temperature is None else temperature
        return TokenPolicy(self._made_engine(), self.codec, temperature=temperature)

    def _made_engine(self) -> Engine:
        if self._engine is None:
            self.refresh()
        assert self._engine is not None
        return self._engine

    def scored(self, trajectories: Sequence[Trajectory], tasks: Sequence[Task]) -> list[Trajectory]:
        return self._reward.score_all(trajectories, tasks)

    def sample(
        self,
        tasks: Sequence[Task],
        seeds: Sequence[int],
        *,
        given: Sequence[Sequence[Message]] = (),
        temperature: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        is_share: bool = False,
    ) -> list[Trajectory]:
        """One scored episode of `tasks[i]` under `seeds[i]` for every i, behind the messages
        `given[i]`, at `temperature` in place of the sampler's own. `is_share`: other processes play
        more, and all are to be judged together by `refuse_many_aborted`."""
        own = self.policy(temperature)
        policy: Policy = own
        if any(given):
            keys = [(task.task_id, seed) for task, seed in zip(tasks, seeds, strict=True)]
            policy = PrefixPolicy(own, self.codec, dict(zip(keys, given, strict=True)))
        policy = self._others.with_own(policy, temperature=self._temperature if temperature is None else temperature)
        limits = self.limits.model_copy(update={"max_aborted_frac": 1.0}) if is_share else self.limits
        trajectories = run_episodes(policy, tasks, domain=self.domain, limits=limits, seeds=seeds, progress=progress)
        return self.scored(trajectories, tasks)

    async def play(self, tasks: Sequence[Task], seeds: Sequence[int], *, name: str, gate: Gate) -> list[Trajectory]:
        """Play a scored episode of `tasks[i]` under `seeds[i]` for every i, each message through
        the gate, while others are played under other names."""
        own = TokenPolicy(GatedEngine(self._made_engine(), gate), self.codec, temperature=self._temperature)
        played = await run_beside(
            self._others.with_own(own, temperature=self._temperature),
            tasks,
            domain=self.domain,
            limits=self.limits.model_copy(update={"max_aborted_frac": 1.0}),
            seeds=seeds,
            name=f"{name} ",
        )
        return await asyncio.to_thread(self.scored, played, tasks)  # a judge is asked over the network

    def refuse_many_aborted(self, trajectories: Sequence[Trajectory]) -> None:
        """Raises Interrupted where more of them were aborted than may be."""
        refuse_many_aborted([one for one in trajectories if one.is_aborted], len(trajectories), self.limits)


def check_prompts(codec: ChatCodec, domain: Domain) -> list[list[int]]:
    """Prompts on which a server's weights are checked: those of the first dev tasks."""
    return [
        codec.encode_prompt(task.messages, [domain.tools[name].schema() for name in task.tools])
        for task in domain.tasks("dev", NUM_CHECKS)
    ]


class Player(Protocol):
    """Plays tasks at a temperature, 0 for greedy; a scored episode of each."""

    def __call__(
        self, tasks: Sequence[Task], temperature: float, progress: Callable[[int, int], None] | None = None
    ) -> Sequence[Trajectory]: ...


@dataclass(frozen=True, slots=True)
class ScoredWorld:
    """A world, the reward that scores its episodes, and their limits."""

    domain: Domain
    reward: RuleReward
    limits: AgentParams

    @classmethod
    def of(cls, world: WorldParams, reward: RewardParams, limits: AgentParams) -> "ScoredWorld":
        domain = open_domain(world, limits)
        return cls(domain, load_reward(reward, score_names(domain)), limits)

    def sampler(
        self,
        model: Any,
        codec: ChatCodec,
        *,
        temperature: float,
        takes_weights: bool = False,
        engine: Engine | None = None,
    ) -> EpisodeSampler:
        own: dict[str, Any] = {"domain": self.domain, "reward": self.reward, "limits": self.limits, "engine": engine}
        return EpisodeSampler(model, codec, **own, temperature=temperature, takes_weights=takes_weights)

    def player(self, model: Any, codec: ChatCodec, *, seed: int) -> Player:
        """A player for an evaluation, which takes the model's weights; `seed` draws the episodes'
        seeds."""
        sampler = self.sampler(model, codec, temperature=0.0, takes_weights=True)

        def play(
            tasks: Sequence[Task], temperature: float, progress: Callable[[int, int], None] | None = None
        ) -> list[Trajectory]:
            seeds = episode_seeds(Stream.EVALUATION, seed, count=len(tasks))
            return sampler.sample(tasks, seeds, temperature=temperature, progress=progress)

        return play


def sample_groups(
    sampler: EpisodeSampler,
    tasks: Sequence[Task],
    *,
    num_samples: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Trajectory], list[Task]]:
    """`num_samples` scored episodes in a row of each task, for pairs, and the task of each
    episode."""
    plays = [task for task in tasks for _ in range(num_samples)]
    seeds = episode_seeds(Stream.PREFERENCES, seed, count=len(plays))
    return sampler.sample(plays, seeds, progress=progress), plays


class Stream(IntEnum):
    """Stream of random seeds, one for each use of episodes."""

    EVALUATION = 1
    PREFERENCES = 2
    ONLINE = 4
    MEASUREMENT = 5  # of a program, in benchmarks and tests
    BRANCHES = 6
    OWN = 7  # rounds of rejection sampling
    VALUES = 8  # branches for the values of turns in training
    ASYNCHRONOUS = 9


def episode_seeds(stream: Stream, *entropy: int, count: int) -> list[int]:
    """`count` seeds below 2^32, drawn from a stream and whole numbers such as the run's seed and
    the step: the same for the same numbers, unrelated for others."""
    # SeedSequence pads with zeros: without the count of numbers, 1 alone would draw as 1, 0 does.
    return [int(word) for word in np.random.SeedSequence((int(stream), len(entropy), *entropy)).generate_state(count)]
