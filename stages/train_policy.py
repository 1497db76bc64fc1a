"""Trains the SFT model further: online or by rejection sampling on its own episodes of the rl
tasks, on the sampled pairs by DPO, KTO or ORPO, or by several of these one after another."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from posttrain.config.params import Params
from posttrain.data.edits import FOR_GROUPS, read_edits
from posttrain.data.schemas import read_tasks, read_trajectories
from posttrain.models.loading import load_codec
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.episode_sampler import ScoredWorld
from posttrain.traces.values import traced
from posttrain.traces.writer import Record, open_traces
from posttrain.tracking.alarms import Alarms
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.train.online.learning import PolicyInputs
from posttrain.train.policy import learn_policy
from posttrain.train.policy_inputs import PAIRS, PROCESS_MODEL, REWARD_MODEL
from posttrain.train.preference_pairs import read_pairs
from posttrain.train.resumable_trainer import METRICS, open_run
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
    alarms = Alarms(knobs.alarms, on_alarm=knobs.on_alarm) if knobs.is_online else None
    with (
        open_run(
            run.checkpoint_dir,
            sinks=wandb_sinks(run, run.checkpoint_dir),
            alarms=alarms,
            progress=run.progress,
            rows_at_once=params.model.rows_at_once,
        ) as training,
        open_traces(run.full_name, key=run.key, params=params) as record,
    ):
        learn_policy(model, codec, _inputs(params, record), params=knobs, seed=params.seed, run=training)
    if run.is_first:
        save_trained(model, codec.tokenizer, Path("data/models/policy"))
        report = Path("reports/train_policy") / METRICS
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run.checkpoint_dir / METRICS, report)


def _inputs(params: Params, record: Record) -> PolicyInputs:
    tasks = read_tasks(TASKS, "rl")
    task_of = {task.task_id: task for task in tasks}
    resampled = read_trajectories(RESAMPLED)

    def on_step(step: int, played: Sequence[Trajectory], advantages: Sequence[float]) -> None:
        own = [task_of[one.task_id] for one in played]
        record(traced(played, own, advantages=advantages, step=step))

    return PolicyInputs(
        world=ScoredWorld.of(params.world, params.reward, params.agent),
        tasks=tasks,
        dev_tasks=read_tasks(TASKS, "dev"),
        demonstrations=[row for row in resampled if row.split == "dev"],
        replayed=[row for row in resampled if row.split != "dev"],
        reasoning_frac=params.generate_data.reasoning_frac,
        reward_model=load_reward_model(REWARD_MODEL, dtype=params.model.dtype)
        if params.train_policy.reward_model_weight
        else None,
        process_model=load_reward_model(PROCESS_MODEL, dtype=params.model.dtype)
        if params.train_policy.reads_process_model
        else None,
        edits=read_edits(FOR_GROUPS),
        pairs=lambda: read_pairs(PAIRS),
        on_step=on_step,
    )


if __name__ == "__main__":
    run_stage(train_policy, is_launchable=True)
