"""Trains in several processes and in one, and compares what both reach. Both train on the inputs
that are there, and their models play the dev tasks.

The first step must be the same but for rounding; after 88 steps of Muon the weights are others, so
there the question is whether the intervals of the success overlap. On a machine with more cores
than processes, seconds compare too. `python -m benchmarks.processes [--stage train_policy]
[--config infra/accelerate/fsdp.yaml] [--processes 4] [--override
train_policy.algorithm.max_steps=22]`
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

from benchmarks.arms import apply_overrides
from posttrain.config.params import load_params
from posttrain.data.schemas import read_tasks
from posttrain.evals.significance import share_interval
from posttrain.models.loading import load_codec, load_model
from posttrain.pipeline.snapshot import freeze
from posttrain.rewards.total import load_reward
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.runtime.plain_yaml import load_yaml
from posttrain.worlds.catalog import make_domain, score_names

OUTPUTS = {"train_sft": Path("data/models/sft"), "train_policy": Path("data/models/policy")}
TASKS = Path("data/raw/tasks.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=sorted(OUTPUTS), default="train_sft")
    parser.add_argument("--config", default="infra/accelerate/ddp.yaml")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--override", action="append", default=[], metavar="KNOB=VALUE")
    chosen = parser.parse_args()
    overrides = {name: load_yaml(value, name) for name, _, value in (text.partition("=") for text in chosen.override)}
    with tempfile.TemporaryDirectory(prefix="processes-") as temporary:
        for name, launch in (
            ("one process", {}),
            (f"{chosen.processes} x {Path(chosen.config).stem}", _launch(chosen.config, chosen.processes)),
        ):
            folder = Path(temporary) / name.replace(" ", "-")
            seconds = _train(chosen.stage, folder, launch, overrides)
            first = json.loads(
                (folder / "reports" / chosen.stage / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0]
            )
            watched = {
                key: round(first[key], 6)
                for key in ("loss", "grad_norm", "reward_mean", "reward_std", "entropy")
                if key in first
            }
            print(
                f"{name:12}  {seconds:6.0f} s  first step {watched}  dev success "
                f"{dev_success(folder / OUTPUTS[chosen.stage])}",
                flush=True,
            )


def dev_success(model_folder: Path) -> str:
    """Greedy success on the dev tasks with its 95 % interval, in percent."""
    params = load_params()
    tasks = read_tasks(TASKS, "dev")
    model, codec = load_model(model_folder, dtype=params.model.dtype), load_codec(model_folder)
    domain = make_domain(params.world)
    sampler = EpisodeSampler(
        model,
        codec,
        domain=domain,
        reward=load_reward(params.reward, score_names(domain)),
        limits=params.agent,
        temperature=0.0,
    )
    played = sampler.sample(tasks, episode_seeds(Stream.MEASUREMENT, params.seed, count=len(tasks)))
    num_successes = sum(one.is_success for one in played)
    low, high = share_interval(num_successes, len(tasks))
    return f"{100 * num_successes / len(tasks):.1f} ({100 * low:.1f} … {100 * high:.1f})"


def _launch(config: str, num_processes: int) -> dict[str, str]:
    return {"POSTTRAIN_LAUNCH": config, "POSTTRAIN_PROCESSES": str(num_processes)}


def _train(stage: str, folder: Path, launch: dict[str, str], overrides: dict[str, object]) -> float:
    """Seconds. In a frozen copy of the tree, whose checkpoints nobody shares: the two would go on
    from each other's."""
    freeze(Path(), stage, folder)
    (folder / ".posttrain" / "checkpoints").unlink()
    apply_overrides(folder / "params.yaml", overrides)
    started_s = monotonic()
    environment = {
        **os.environ,
        **launch,
        "PYTHONPATH": str(folder),
        "WANDB_MODE": "disabled",
        "POSTTRAIN_TRACES": "off",
    }
    subprocess.run([sys.executable, "-m", f"stages.{stage}"], cwd=folder, env=environment, check=True)
    return monotonic() - started_s


if __name__ == "__main__":
    main()
