"""Learns online from multi-turn episodes of the rl tasks, or from the sampled pairs by DPO, KTO or
ORPO; each begins from the SFT model."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.config.params import Params
from posttrain.data.schemas import read_tasks, read_trajectories
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rewards.total import load_reward
from posttrain.rollout.demonstrations import demonstrate
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.rollout.expert_traces import ExpertTraces
from posttrain.rollout.generator import ScoredEpisode
from posttrain.traces.values import traced
from posttrain.traces.writer import Record, open_traces
from posttrain.tracking.alarms import Alarms
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.train.dpo import train_dpo
from posttrain.train.kto import train_kto
from posttrain.train.online.inputs import TrainingInputs
from posttrain.train.online.loop import train_online
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.policy_episodes import PolicyEpisodes
from posttrain.train.orpo import train_orpo
from posttrain.train.params import DpoParams, KtoParams, OrpoParams
from posttrain.train.preference_pairs import read_pairs, token_rows
from posttrain.train.replay.params import JoinsExpert, JoinsHints
from posttrain.train.resumable_trainer import METRICS, TrainingRun, open_run
from posttrain.train.reward_model import load_reward_model
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.types import Trajectory
from posttrain.worlds.domains import make_domain, score_names, with_expert

TASKS = Path("data/raw/tasks.parquet")
RESAMPLED = Path("data/resampled/demonstrations.parquet")
SFT = Path("data/models/sft")
REWARD = Path("data/models/reward")


def train_policy(run: StageRun) -> None:
    params = run.params
    codec = load_codec(SFT)
    model = load_trainable(SFT, params.model, seed=params.seed)
    knobs = params.train_policy
    is_online = isinstance(knobs.algorithm, OnlineParams)
    alarms = Alarms(knobs.alarms, on_alarm=knobs.on_alarm) if is_online else None
    with open_run(
        run.checkpoint_dir,
        sinks=wandb_sinks(run, run.checkpoint_dir),
        alarms=alarms,
        progress=run.progress,
        rows_at_once=params.model.rows_at_once,
    ) as training:
        match knobs.algorithm:
            case OnlineParams() as algorithm:
                with open_traces(run.full_name, key=run.key, params=params) as record:
                    _online(model, codec, params, algorithm, training, record)
            case DpoParams() | KtoParams() | OrpoParams() as algorithm:
                _on_pairs(model, codec, params, algorithm, training)
    if run.is_first:
        save_trained(model, codec.tokenizer, Path("data/models/policy"))
        report = Path("reports/train_policy") / METRICS
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run.checkpoint_dir / METRICS, report)


def _online(
    model: Any, codec: ChatCodec, params: Params, algorithm: OnlineParams, run: TrainingRun, record: Record
) -> None:
    weight = params.train_policy.reward_model_weight
    reward_model = load_reward_model(REWARD, dtype=params.model.dtype) if weight else None
    domain = make_domain(params.world)
    reward = load_reward(params.reward, score_names(domain))
    sampler = EpisodeSampler(
        model, codec, domain=domain, reward=reward, limits=params.agent, temperature=algorithm.temperature
    )
    tasks, dev_tasks = read_tasks(TASKS, "rl"), read_tasks(TASKS, "dev")
    task_of = {task.task_id: task for task in tasks}
    shown_by: dict[str, Any] = {
        "limits": params.agent,
        "seed": params.seed,
        "reasoning_frac": params.generate_data.reasoning_frac,
    }
    traces = (
        ExpertTraces(with_expert(domain, wanted_by=algorithm.join.knob), codec, reward=reward, **shown_by)
        if isinstance(algorithm.join, JoinsExpert | JoinsHints)
        else None
    )
    source = PolicyEpisodes(sampler, reward_model=reward_model, weight=weight, traces=traces)

    def on_step(step: int, played: Sequence[ScoredEpisode], advantages: Sequence[float]) -> None:
        own = [task_of[one.trajectory.task_id] for one in played]
        record(traced(list(map(_as_learnt, played)), own, advantages=advantages, step=step))

    shown = read_trajectories(RESAMPLED, "dev")[: algorithm.tasks_per_step] or demonstrate(
        with_expert(
            domain, wanted_by="the forgetting alarm of train_policy (or generate_data.source.dev_frac above 0)"
        ),
        dev_tasks[: algorithm.tasks_per_step],
        is_flawless=True,
        **shown_by,
    )
    train_online(
        model,
        codec.tokenizer,
        TrainingInputs(
            tasks,
            source,
            codec.encode_rows(row.conversation for row in shown),
            on_step,
            dev_tasks=dev_tasks,
            play_greedily=lambda own: source.play_greedily(own, [params.seed] * len(own)),
            shown=source.shown if traces is not None else None,
            score_weights=reward.weights,
        ),
        params=algorithm,
        max_context_tokens=params.agent.max_context_tokens,
        **_how(params, run),
    )


def _as_learnt(played: ScoredEpisode) -> Trajectory:
    """With the reward that was learnt from: the rules' and what the reward model added."""
    if not played.bonus:
        return played.trajectory
    scores = {**played.trajectory.scores, "reward_model": played.bonus}
    return replace(played.trajectory, scores=scores, reward=played.rule_reward + played.bonus)


def _on_pairs(
    model: Any, codec: ChatCodec, params: Params, algorithm: DpoParams | KtoParams | OrpoParams, run: TrainingRun
) -> None:
    sampled = read_pairs(Path("data/preferences/pairs.parquet"))
    chosen, rejected = (token_rows([getattr(pair, side) for pair in sampled], codec) for side in ("chosen", "rejected"))
    pairs, how = list(zip(chosen, rejected, strict=True)), _how(params, run)
    match algorithm:
        case DpoParams():
            train_dpo(model, codec.tokenizer, pairs=pairs, params=algorithm, **how)
        case KtoParams():
            train_kto(model, codec.tokenizer, pairs=pairs, params=algorithm, **how)
        case OrpoParams():
            train_orpo(model, codec.tokenizer, pairs=pairs, params=algorithm, **how)


def _how(params: Params, run: TrainingRun) -> dict[str, Any]:
    """What every algorithm is told."""
    knobs = params.train_policy
    return {
        "lr": knobs.lr,
        "optimizer": knobs.optimizer,
        "checkpoint_every_steps": knobs.checkpoint_every_steps,
        "seed": params.seed,
        "run": run,
    }


if __name__ == "__main__":
    run_stage(train_policy, is_launchable=True)
