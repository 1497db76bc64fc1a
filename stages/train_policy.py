"""Trains the SFT model online on multi-turn episodes of the rl tasks, or on the sampled pairs by
DPO, KTO or ORPO."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.config.params import Params
from posttrain.data.edits import FOR_GROUPS, read_edits
from posttrain.data.schemas import read_tasks, read_trajectories
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.episode_sampler import ScoredWorld
from posttrain.traces.values import traced
from posttrain.traces.writer import Record, open_traces
from posttrain.tracking.alarms import Alarms
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.train.on_pairs import learn_from_pairs
from posttrain.train.online.learning import learn_online
from posttrain.train.online.params import OnlineParams
from posttrain.train.policy_inputs import PAIRS, REWARD_MODEL
from posttrain.train.policy_params import DpoParams, KtoParams, OrpoParams
from posttrain.train.preference_pairs import read_pairs
from posttrain.train.resumable_trainer import METRICS, TrainingRun, open_run
from posttrain.train.reward_model import load_reward_model
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.types import Trajectory

TASKS = Path("data/raw/tasks.parquet")
RESAMPLED = Path("data/resampled/demonstrations.parquet")
SFT = Path("data/models/sft")


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
                learn_from_pairs(
                    model, codec, read_pairs(PAIRS), algorithm, params=knobs, seed=params.seed, run=training
                )
    if run.is_first:
        save_trained(model, codec.tokenizer, Path("data/models/policy"))
        report = Path("reports/train_policy") / METRICS
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run.checkpoint_dir / METRICS, report)


def _online(
    model: Any, codec: ChatCodec, params: Params, algorithm: OnlineParams, run: TrainingRun, record: Record
) -> None:
    tasks = read_tasks(TASKS, "rl")
    task_of = {task.task_id: task for task in tasks}

    def on_step(step: int, played: Sequence[Trajectory], advantages: Sequence[float]) -> None:
        own = [task_of[one.task_id] for one in played]
        record(traced(played, own, advantages=advantages, step=step))

    learn_online(
        model,
        codec,
        ScoredWorld.of(params.world, params.reward, params.agent),
        algorithm,
        params=params.train_policy,
        tasks=tasks,
        dev_tasks=read_tasks(TASKS, "dev"),
        demonstrations=read_trajectories(RESAMPLED, "dev"),
        reasoning_frac=params.generate_data.reasoning_frac,
        seed=params.seed,
        run=run,
        reward_model=load_reward_model(REWARD_MODEL, dtype=params.model.dtype)
        if params.train_policy.reward_model_weight
        else None,
        edits=read_edits(FOR_GROUPS),
        on_step=on_step,
    )


if __name__ == "__main__":
    run_stage(train_policy, is_launchable=True)
