"""Training on the policy's own episodes in a world: these, scored by rules and, where it has a
weight, by the reward model; the expert's traces; and the calls of the training loops."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from posttrain.data.edits import VerifiedEdit
from posttrain.data.preferences import Pair, Verdict
from posttrain.data.schemas import TrajectoryRow
from posttrain.models import distributed
from posttrain.models.codec import ChatCodec
from posttrain.rollout.asynchronous import Gate
from posttrain.rollout.engines.choice import is_elsewhere
from posttrain.rollout.engines.protocol import Engine
from posttrain.rollout.engines.tinker_engine import TinkerEngine
from posttrain.rollout.episode_sampler import EpisodeSampler, ScoredWorld, Stream, check_prompts, episode_seeds
from posttrain.rollout.episodes import demonstrate
from posttrain.rollout.expert_traces import EditTraces, ExpertTraces, given_turns
from posttrain.rollout.memory import worker_rows
from posttrain.rollout.play_on import Fork, sample_branches
from posttrain.rollout.reflection import RetryDomain, RetryTask, is_failed, reflect_and_retry
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.online.loop import train_online
from posttrain.train.online.on_server import check_server, fetch_adapter, open_policy, train_on_server
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.trainer_choice import is_on_server
from posttrain.train.online.trainer_state import TrainingInputs
from posttrain.train.policy_params import TrainPolicyParams
from posttrain.train.rejection_sampling.params import RejectionSamplingParams, RetryReflection
from posttrain.train.rejection_sampling.rounds import Learner, train_by_rejection_sampling
from posttrain.train.replay import EditReplay, ExpertReplay, HintReplay
from posttrain.train.resumable_trainer import TrainingRun, open_part
from posttrain.train.reward_ensemble import RewardModels
from posttrain.train.reward_refresh import RewardRefresh
from posttrain.train.roles import EQUAL, RoleWeights, learnt_part
from posttrain.types import Message, ScoredEpisode, Task, Trajectory
from posttrain.worlds.catalog import require_expert

NUM_CHECKS = 8  # prompts on which a server's base model must agree with ours

OnStep = Callable[[int, Sequence[Trajectory], Sequence[float]], None]  # step, episodes, their mean advantages


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """The world, tasks and data of a policy's training. The loss on some of `demonstrations` tells
    what is forgotten; without any, the world's expert plays dev tasks for it. `replayed` are those
    of SFT, `earlier` episodes that an earlier run learnt from; they, `edits` and `pairs` are used
    where the algorithm says so."""

    world: ScoredWorld
    tasks: Sequence[Task]
    dev_tasks: Sequence[Task]
    demonstrations: Sequence[TrajectoryRow] = ()
    replayed: Sequence[TrajectoryRow] = ()
    earlier: Sequence[ScoredEpisode] = ()
    reasoning_frac: float
    reward_model: RewardModels | None = None
    process_model: Any = None
    edits: Sequence[VerifiedEdit] = ()
    pairs: Callable[[], Sequence[Pair]] = tuple
    verdicts: Callable[[], Sequence[Verdict]] = tuple
    on_step: OnStep = lambda *_: None

    def training(self, source: "PolicyEpisodes", *, seed: int, **more: Any) -> TrainingInputs:
        """The inputs of a training on the episodes of `source`."""
        return TrainingInputs(
            self.tasks,
            source,
            on_step=lambda step, played, advantages: self.on_step(step, list(map(_as_learnt, played)), advantages),
            dev_tasks=self.dev_tasks,
            play_greedily=lambda own: source.play_greedily(own, [seed] * len(own)),
            **more,
        )


def learn_online(
    model: Any,
    codec: ChatCodec,
    inputs: PolicyInputs,
    algorithm: OnlineParams,
    *,
    params: TrainPolicyParams,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place on its own episodes; where a Tinker server trains, its adapter is
    loaded into `model` at the end."""
    world = inputs.world
    how: dict[str, Any] = {
        "params": algorithm,
        "max_context_tokens": world.limits.max_context_tokens,
        "optimizer_params": params,
        "checkpoint_every_steps": params.checkpoint_every_steps,
        "seed": seed,
    }

    def trained_on(engine: Engine | None) -> TrainingInputs:
        sampler = _behind_failures(world).sampler(model, codec, temperature=algorithm.temperature, engine=engine)
        return _online_inputs(sampler, codec, inputs, algorithm, params=params, seed=seed)

    if not is_on_server():
        train_online(model, codec.tokenizer, trained_on(None), run=run, **how)
        return
    if run.checkpoint is not None:
        raise ConfigurationError(
            f"POSTTRAIN_TRAINER is tinker and {run.checkpoint} is of a training here, which no server can go on from: "
            "unset it, or remove that folder"
        )
    with (
        open_part(run, "on_server", first_step=0, num_steps=algorithm.max_steps) as part,
        open_policy(model, seed=seed, checkpoint=part.checkpoint) as policy,
    ):
        engine = TinkerEngine(policy, timeout_s=world.limits.max_seconds)
        if part.checkpoint is None:
            check_server(policy, engine, model, check_prompts(codec, world.domain)[:NUM_CHECKS])
        train_on_server(policy, codec.tokenizer, trained_on(engine), run=part, **how)
        fetch_adapter(policy, model, name="policy")


def _online_inputs(
    sampler: EpisodeSampler,
    codec: ChatCodec,
    inputs: PolicyInputs,
    algorithm: OnlineParams,
    *,
    params: TrainPolicyParams,
    seed: int,
) -> TrainingInputs:
    """Inputs of a training on the sampler's episodes, with what scores and accompanies them."""
    world = inputs.world
    played_by_expert: dict[str, Any] = {
        "limits": world.limits,
        "seed": seed,
        "reasoning_frac": inputs.reasoning_frac,
    }
    traces: ExpertTraces | EditTraces | None = None
    match algorithm.join:
        case ExpertReplay() | HintReplay() as join:
            expert = require_expert(world.domain, needed_by=join.knob)
            traces = ExpertTraces(expert, codec, reward=world.reward, **played_by_expert)
        case EditReplay():
            traces = EditTraces(inputs.edits, codec, domain=world.domain, reward=world.reward)
    source = PolicyEpisodes(
        sampler,
        reward_model=inputs.reward_model,
        weight=params.reward_model_weight,
        world_weight=params.world_reward_weight,
        role_weights=params.role_weights,
        traces=traces,
        reflect=algorithm.retry.prompt if isinstance(algorithm.retry, RetryReflection) else None,
    )
    # as many rows as a step has tasks: one forward pass that costs next to nothing
    num_shown = algorithm.tasks_per_step
    shown = inputs.demonstrations[:num_shown] or demonstrate(
        require_expert(
            world.domain, needed_by="the forgetting alarm of train_policy (or generate_data.source.dev_frac above 0)"
        ),
        inputs.dev_tasks[:num_shown],
        is_flawless=True,
        **played_by_expert,
    )
    return inputs.training(
        source,
        seed=seed,
        demonstrations=codec.encode_rows(row.conversation for row in shown),
        expert=source.expert if traces is not None else None,
        score_weights=world.reward.weights,
        process_model=inputs.process_model,
        role_weights=params.role_weights,
        refresh=RewardRefresh(inputs.reward_model, params.reward_model_refresh, seed=seed)
        if inputs.reward_model is not None and params.reward_model_refresh is not None
        else None,
    )


def learn_by_rejection_sampling(
    model: Any,
    codec: ChatCodec,
    inputs: PolicyInputs,
    algorithm: RejectionSamplingParams,
    *,
    params: TrainPolicyParams,
    seed: int,
    run: TrainingRun,
) -> list[ScoredEpisode]:
    """Train `model` in place on those of its own episodes that are accepted, which are returned,
    and on those of an earlier run."""
    source = PolicyEpisodes(
        _behind_failures(inputs.world).sampler(model, codec, temperature=algorithm.temperature),
        reward_model=inputs.reward_model,
        weight=params.reward_model_weight,
        world_weight=params.world_reward_weight,
        role_weights=params.role_weights,
    )
    return train_by_rejection_sampling(
        Learner(model, codec.tokenizer, params, params.checkpoint_every_steps, seed),
        inputs.training(source, seed=seed),
        replayed=codec.encode_rows(
            own.conversation for one in inputs.replayed for own in (one, *worker_rows(one, inputs.world.limits.memory))
        )
        if algorithm.replay_frac or algorithm.ewc_weight
        else [],
        earlier=inputs.earlier,
        params=algorithm,
        run=run,
    )


def _behind_failures(world: ScoredWorld) -> ScoredWorld:
    return replace(world, domain=RetryDomain(world.domain))


class PolicyEpisodes:
    """An `EpisodeSource`. An episode's reward is `world_weight` times that of the rules, plus
    `weight` · sigmoid(s) of the reward models' score s. `traces`: an expert's for hints and replay,
    or those of edits. With `reflect` (the words that ask for one) `run` plays reflections, rewarded
    as the retries behind them."""

    def __init__(
        self,
        sampler: EpisodeSampler,
        *,
        reward_model: RewardModels | None = None,
        weight: float = 0.0,
        world_weight: float = 1.0,
        role_weights: RoleWeights = EQUAL,
        traces: ExpertTraces | EditTraces | None = None,
        reflect: str | None = None,
    ) -> None:
        self._sampler, self._reward_model = sampler, reward_model
        self._weight, self._world_weight, self._role_weights = weight, world_weight, role_weights
        self._traces, self._reflect = traces, reflect

    @property
    def is_elsewhere(self) -> bool:
        return is_elsewhere()

    @property
    def _is_shared(self) -> bool:
        return distributed.count() > 1 and not self.is_elsewhere

    def refresh(self) -> None:
        self._sampler.refresh()

    def sleep(self) -> None:
        self._sampler.sleep()

    def run(
        self, tasks: Sequence[Task], seeds: Sequence[int], *, prefix_fracs: Sequence[float] = ()
    ) -> list[ScoredEpisode]:
        if self._reflect is not None:
            return self._reflections(tasks, seeds, self._reflect)
        given: Sequence[Sequence[Message]] = ()
        if isinstance(self._traces, ExpertTraces) and prefix_fracs:
            given = given_turns(self._traces, tasks, prefix_fracs)
        return self._scored(self._sampler.sample(tasks, seeds, given=given, is_share=self._is_shared))

    async def play(self, tasks: Sequence[Task], seeds: Sequence[int], *, name: str, gate: Gate) -> list[ScoredEpisode]:
        return await asyncio.to_thread(self._scored, await self._sampler.play(tasks, seeds, name=name, gate=gate))

    def play_on(self, forks: Sequence[Fork]) -> list[ScoredEpisode]:
        return self._scored(sample_branches(self._sampler, forks))

    def refuse_many_aborted(self, episodes: Sequence[ScoredEpisode]) -> None:
        self._sampler.refuse_many_aborted([one.trajectory for one in episodes])

    def play_greedily(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[ScoredEpisode]:
        """At temperature 0, by the weights as they are now."""
        self._sampler.refresh()
        if not tasks:
            return []
        episodes = self._scored(self._sampler.sample(tasks, seeds, temperature=0.0, is_share=self._is_shared))
        self._sampler.sleep()
        return episodes

    def expert(self, task: Task, count: int) -> list[ScoredEpisode]:
        """`count` of the expert's traces, or of the edits' branches, scored as episodes are."""
        assert self._traces is not None
        traces = self._traces.traces(task, count)
        if distributed.is_sharded():  # the first process alone has the reward models
            return distributed.from_first(self._scored(traces) if distributed.is_first() else [])
        return self._scored(traces)

    def _reflections(self, tasks: Sequence[Task], seeds: Sequence[int], prompt: str) -> list[ScoredEpisode]:
        """For each task a reflection, with the outcome and reward of its retry. Those of one task
        are on one try, under its first seed; where that succeeds, it is given without its tokens
        in the mask: nothing is learnt."""
        firsts = {task.task_id: (task, seed) for task, seed in reversed([*zip(tasks, seeds, strict=True)])}
        once, own_seeds = zip(*firsts.values(), strict=True)
        tries = dict(zip(firsts, self._scored(self._sampler.sample(once, own_seeds, is_share=True)), strict=True))
        failed = [(task, seed) for task, seed in zip(tasks, seeds, strict=True) if is_failed(tries[task.task_id])]

        def play(own: Sequence[RetryTask]) -> list[ScoredEpisode]:
            # a retry by its reflection's noise would be no fair sample of what that leads to
            seeds = [episode_seeds(Stream.ONLINE, seed, count=2)[own[0].is_reflection] for _, seed in failed]
            return self._scored(self._sampler.sample(own, seeds, is_share=True))

        before = [(task, tries[task.task_id].trajectory) for task, _ in failed]
        rewarded = map(_rewarded, *reflect_and_retry(play, before, prompt))
        return [next(rewarded) if is_failed(one) else _unlearnt(one) for one in (tries[task.task_id] for task in tasks)]

    def _scored(self, trajectories: Sequence[Trajectory]) -> list[ScoredEpisode]:
        trajectories = [learnt_part(one, self._role_weights) for one in trajectories]
        if self._world_weight != 1:
            trajectories = [
                one if one.reward is None else replace(one, reward=self._world_weight * one.reward)
                for one in trajectories
            ]
        if self._reward_model is None:
            return [ScoredEpisode(one) for one in trajectories]
        scores_N = self._reward_model.score([trajectory.token_ids for trajectory in trajectories])
        bonuses_N = self._weight / (1 + np.exp(-scores_N))
        return [ScoredEpisode(one, bonus=float(bonus)) for one, bonus in zip(trajectories, bonuses_N, strict=True)]


def _rewarded(reflection: ScoredEpisode, retry: ScoredEpisode) -> ScoredEpisode:
    own, won = reflection.trajectory, retry.trajectory
    if won.outcome is None:
        return retry
    outcome = replace(won.outcome, turn_scores=())
    return ScoredEpisode(replace(own, outcome=outcome, scores=won.scores, reward=won.reward), bonus=retry.bonus)


def _unlearnt(one: ScoredEpisode) -> ScoredEpisode:
    num = len(one.trajectory.mask)
    return replace(one, trajectory=replace(one.trajectory, mask=(0,) * num, logprobs=(0.0,) * num))


def _as_learnt(played: ScoredEpisode) -> Trajectory:
    """With the reward that was learnt from, bonus included."""
    if not played.bonus:
        return played.trajectory
    scores = {**played.trajectory.scores, "bonus": played.bonus}
    return replace(played.trajectory, scores=scores, reward=played.rule_reward + played.bonus)
