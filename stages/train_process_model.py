"""A process reward model on Monte-Carlo values of the SFT policy's episodes, judged on tasks that
it never saw. Nothing is played where no phase of `train_policy` credits turns by it: the model's
folder and the summary say so."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.data.files import write_json
from posttrain.data.schemas import read_tasks
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec, load_model
from posttrain.provenance.runner import StageRun, run_stage
from posttrain.rollout.episode_sampler import ScoredWorld, sample_groups
from posttrain.traces.values import traced
from posttrain.traces.writer import open_traces
from posttrain.tracking.wandb_sink import wandb_sinks
from posttrain.train.process_model import label_states, state_values
from posttrain.train.process_model import train_process_model as train
from posttrain.train.process_model_quality import LabelledEpisode, judge
from posttrain.train.resumable_trainer import open_run
from posttrain.train.reward_model import new_reward_model
from posttrain.train.trainable import save_trained
from posttrain.worlds.protocol import ExpertDomain

SFT = Path("data/models/sft")
MODEL = Path("data/models/process")
SUMMARY = Path("reports/train_process_model/summary.json")


def train_process_model(run: StageRun) -> None:
    if run.params.train_policy.reads_process_model:
        _train(run)
    else:
        # the folder is never empty: DVC refuses to track an output without a file
        shutil.rmtree(MODEL, ignore_errors=True)
        MODEL.mkdir(parents=True)
        (MODEL / "not_asked.txt").write_text("no train_policy.algorithm.credit is process_model\n", encoding="utf-8")
        write_json(SUMMARY, {"is_asked": False})


def _train(run: StageRun) -> None:
    params, settings = run.params, run.params.train_process_model
    world, codec = ScoredWorld.of(params.world, params.reward, params.agent), load_codec(SFT)
    # before the run is opened: a signal ends the plays at once, and they are the same the next time
    episodes, num_tokens = _label(run, world, codec)
    num_held_out = min(max(round(settings.holdout_frac * len(episodes)), 1), len(episodes) - 1)
    drawn = np.random.default_rng(params.seed).permutation(len(episodes))[:num_held_out]
    seen = [one for place, of_task in enumerate(episodes) if place not in drawn for one in of_task]
    held_out = [episodes[place] for place in sorted(drawn)]
    model = new_reward_model(SFT, params.model, seed=params.seed)
    with open_run(
        run.checkpoint_dir,
        sinks=wandb_sinks(run, run.checkpoint_dir),
        progress=run.progress,
        rows_at_once=params.model.rows_at_once,
    ) as training:
        train(model, codec.tokenizer, episodes=seen, params=settings, seed=params.seed, run=training)
    model.eval()
    values = [state_values(model, [one.trajectory for one in of_task]) for of_task in held_out]
    summary: dict[str, Any] = {
        "is_asked": True,
        "num_episodes": sum(map(len, episodes)),
        "episode_tokens": sum(sum(one.trajectory.mask) for of_task in episodes for one in of_task),
        "branch_tokens": num_tokens,
    }
    write_json(SUMMARY, summary | judge(held_out, values, has_expert=isinstance(world.domain, ExpertDomain)))
    save_trained(model, codec.tokenizer, MODEL)


def _label(run: StageRun, world: ScoredWorld, codec: ChatCodec) -> tuple[list[list[LabelledEpisode]], int]:
    params, settings = run.params, run.params.train_process_model
    tasks = read_tasks(Path("data/raw/tasks.parquet"), "rl")[: settings.num_tasks]
    model = load_model(SFT, dtype=params.model.dtype)
    sampler = world.sampler(model, codec, temperature=settings.temperature)
    with open_traces(run.full_name, key=run.key, params=params) as record:
        played, plays = sample_groups(sampler, tasks, num_samples=settings.samples_per_task, seed=params.seed)
        record(traced(played, plays))
    return label_states(sampler, tasks, played, branches=settings.branches_per_turn, seed=params.seed)


if __name__ == "__main__":
    run_stage(train_process_model)
