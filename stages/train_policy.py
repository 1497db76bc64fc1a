"""Trains the SFT model further: online or by rejection sampling on its own episodes of the rl
tasks, on the sampled pairs by DPO, KTO or ORPO, or by several of these one after another."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from posttrain.config.params import Params
from posttrain.data.edits import FOR_GROUPS, read_edits
from posttrain.data.preferences import read_pairs, read_verdicts
from posttrain.data.schemas import read_tasks, read_trajectories
from posttrain.models import distributed
from posttrain.models.loading import load_codec
from posttrain.models.params import at_once_of
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.engines.tinker_engine import require_server
from posttrain.rollout.episode_sampler import ScoredWorld
from posttrain.traces.values import traced
from posttrain.traces.writer import Record, open_traces
from posttrain.tracking.alarms import Alarms
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.train.online.learning import PolicyInputs
from posttrain.train.online.trainer_choice import is_on_server, refuse_for_server
from posttrain.train.policy import learn_policy
from posttrain.train.policy_inputs import PAIRS, PROCESS_MODEL, REPLAYED, REWARD_MODEL, START, VERDICTS
from posttrain.train.replay_buffer import EXPERIENCE, merged, read_buffer, write_buffer
from posttrain.train.resumable_trainer import METRICS, open_run
from posttrain.train.reward_ensemble import load_reward_models
from posttrain.train.reward_model import load_shared_model
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.types import ScoredEpisode, Trajectory

TASKS = Path("data/raw/tasks.parquet")
RESAMPLED = Path("data/resampled/demonstrations.parquet")
SFT = Path("data/models/sft")


def train_policy(run: StageRun) -> None:
    params = run.params
    knobs = params.train_policy
    if is_on_server():
        refuse_for_server(knobs, params.model)
        require_server()  # a model may take minutes to load
    start = START if knobs.start == "earlier_run" else SFT
    codec = load_codec(start)
    model = load_trainable(start, params.model, seed=params.seed)
    tokenizer = hashlib.sha256((start / "tokenizer.json").read_bytes()).hexdigest()
    replayed = read_buffer(REPLAYED, tokenizer=tokenizer)
    alarms = Alarms(knobs.alarms, on_alarm=knobs.on_alarm) if knobs.is_online else None
    with (
        open_run(
            run.checkpoint_dir,
            sinks=wandb_sinks(run, run.checkpoint_dir),
            alarms=alarms,
            progress=run.progress,
            at_once=at_once_of(params.model),
        ) as training,
        open_traces(run.full_name, key=run.key, params=params) as record,
    ):
        inputs = _inputs(params, replayed, record)
        learnt = learn_policy(model, codec, inputs, params=knobs, seed=params.seed, run=training)
    save_trained(model, codec.tokenizer, Path("data/models/policy"))
    if run.is_first:
        kept = merged(replayed, learnt, knobs.replay_buffer) if knobs.replay_buffer else []
        write_buffer(EXPERIENCE, kept, tokenizer=tokenizer)
        report = Path("reports/train_policy") / METRICS
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run.checkpoint_dir / METRICS, report)


def _inputs(params: Params, replayed: Sequence[ScoredEpisode], record: Record) -> PolicyInputs:
    tasks = read_tasks(TASKS, "rl")
    part = params.train_policy.task_part
    task_of = {task.task_id: task for task in tasks}
    resampled = read_trajectories(RESAMPLED)

    def on_step(step: int, played: Sequence[Trajectory], advantages: Sequence[float]) -> None:
        own = [task_of[one.task_id] for one in played]
        record(traced(played, own, advantages=advantages, step=step))

    return PolicyInputs(
        world=ScoredWorld.of(params.world, params.reward, params.agent),
        tasks=part.of_tasks(tasks) if part else tasks,
        dev_tasks=read_tasks(TASKS, "dev"),
        demonstrations=[row for row in resampled if row.split == "dev"],
        replayed=[row for row in resampled if row.split != "dev"],
        earlier=replayed,
        reasoning_frac=params.generate_data.reasoning_frac,
        reward_model=load_reward_models(REWARD_MODEL, params.train_policy.reward_model_bound, dtype=params.model.dtype)
        if params.train_policy.reward_model_weight and (distributed.is_first() or not distributed.is_sharded())
        else None,
        process_model=load_shared_model(PROCESS_MODEL, dtype=params.model.dtype)
        if params.train_policy.reads_process_model
        else None,
        edits=read_edits(FOR_GROUPS),
        pairs=lambda: read_pairs(PAIRS),
        verdicts=lambda: read_verdicts(VERDICTS) if VERDICTS.exists() else [],
        on_step=on_step,
    )


if __name__ == "__main__":
    run_stage(train_policy, is_launchable=True)
