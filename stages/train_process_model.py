"""A process reward model on Monte-Carlo values of the SFT policy's episodes, and on the turns that
people marked, judged on tasks that it never saw. Nothing is played where no phase of `train_policy`
credits turns by it: the model's folder and the summary say so."""

from pathlib import Path
from typing import Any

import numpy as np

from posttrain.data.files import leave_untrained, write_json
from posttrain.data.preferences import IMPORTED, read_verdicts
from posttrain.data.schemas import read_tasks
from posttrain.provenance.runner import StageRun, run_stage

SFT = Path("data/models/sft")
MARKED = IMPORTED / "verdicts.parquet"
MODEL = Path("data/models/process")
SUMMARY = Path("reports/train_process_model/summary.json")


def train_process_model(run: StageRun) -> None:
    if run.params.train_policy.reads_process_model:
        _train(run)
    else:
        leave_untrained(MODEL, "no train_policy.algorithm.credit is process_model")
        write_json(SUMMARY, {"is_asked": False})


def _train(run: StageRun) -> None:
    # here, as torch and its friends take seconds that a run without such credit need not wait for
    from posttrain.models.loading import load_codec, load_model
    from posttrain.models.params import at_once_of
    from posttrain.rollout.episode_sampler import ScoredWorld, sample_groups
    from posttrain.traces.values import traced
    from posttrain.traces.writer import open_traces
    from posttrain.tracking.wandb_sink import wandb_sinks
    from posttrain.train.process_model import label_states, marked_episodes, state_values
    from posttrain.train.process_model import train_process_model as train
    from posttrain.train.process_model_quality import judge
    from posttrain.train.resumable_trainer import open_run
    from posttrain.train.reward_model import new_reward_model
    from posttrain.train.trainable import save_trained
    from posttrain.worlds.protocol import ExpertDomain

    params, settings, seed = run.params, run.params.train_process_model, run.params.seed
    world, codec = ScoredWorld.of(params.world, params.reward, params.agent), load_codec(SFT)
    tasks = read_tasks(Path("data/raw/tasks.parquet"), "rl")[: settings.num_tasks]
    player = load_model(SFT, dtype=params.model.dtype)
    sampler = world.sampler(player, codec, temperature=settings.temperature)
    # before the run is opened: a signal ends the plays at once, and they are the same the next time
    with open_traces(run.full_name, key=run.key, params=params) as record:
        played, plays = sample_groups(sampler, tasks, num_samples=settings.samples_per_task, seed=seed)
        record(traced(played, plays))
    episodes, num_tokens = label_states(sampler, tasks, played, branches=settings.branches_per_turn, seed=seed)
    num_held_out = min(max(round(settings.holdout_frac * len(tasks)), 1), len(tasks) - 1)
    drawn = np.random.default_rng(seed).permutation(len(tasks))[:num_held_out]
    seen = [one for place, of_task in enumerate(episodes) if place not in drawn for one in of_task]
    held_out = [episodes[place] for place in sorted(drawn)]
    judged = {tasks[place].task_id for place in drawn}
    marked = marked_episodes([one for one in read_verdicts(MARKED) if one.row.trajectory.task_id not in judged], codec)
    model = new_reward_model(SFT, params.model, seed=seed)
    with open_run(
        run.checkpoint_dir,
        sinks=wandb_sinks(run, run.checkpoint_dir),
        progress=run.progress,
        at_once=at_once_of(params.model),
    ) as training:
        train(model, codec.tokenizer, episodes=seen + marked, params=settings, seed=seed, run=training)
    model.eval()
    values = [state_values(model, [one.trajectory for one in of_task]) for of_task in held_out]
    summary: dict[str, Any] = {
        "is_asked": True,
        "num_episodes": sum(map(len, episodes)),
        "num_marked_by_people": len(marked),
        "episode_tokens": sum(sum(one.mask) for one in played),
        "branch_tokens": num_tokens,
    }
    write_json(SUMMARY, summary | judge(held_out, values, has_expert=isinstance(world.domain, ExpertDomain)))
    save_trained(model, codec.tokenizer, MODEL)


if __name__ == "__main__":
    run_stage(train_process_model)
