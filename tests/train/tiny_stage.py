"""A stage that trains a tiny model, run as the program that DVC would start: `what.json` says
which, and how one of its processes dies.

What trains is imported where it trains: the frame that waits for the processes does without, and
dozens of them start in a suite.
"""

import dataclasses
import json
import os
import signal
from pathlib import Path

from posttrain.provenance.runner import StageRun, run_stage
from posttrain.runtime.exits import ConfigurationError


def tiny_stage(run: StageRun):
    """`kill`, `fail` and `refuse` name the process that dies of SIGKILL or of an exception, or
    finds its knobs wrong, after step `at`. The file `step` appears in step `at`."""
    from tiny_runs import RUNS, make_model, whole_state

    from posttrain.models import token_logprobs
    from posttrain.models.micro_batches import AtOnce
    from posttrain.train.resumable_trainer import open_run

    what = json.loads(Path("what.json").read_text())
    model = make_model(what["algorithm"], is_adapted=what.get("is_adapted", False))
    more = {"on_step": write_episodes} if what["algorithm"] in ("online", "served") else {}
    at_once = AtOnce(what.get("rows_at_once"), what.get("tokens_at_once"))
    token_logprobs.MAX_LOGITS = what.get("max_logits", token_logprobs.MAX_LOGITS)
    with open_run(run.checkpoint_dir, at_once=at_once) as training:
        training.progress = lambda done, total, note: after_step(done, what, run)
        RUNS[what["algorithm"]](training, model, **more, **what.get("changes", {}))
    weights = whole_state(model) if model is not None else {}
    if run.is_first:
        write_result(run.checkpoint_dir, weights)


def after_step(done, what, run):
    if run.is_first:
        with Path("steps").open("a") as file:
            file.write(f"{os.getpid()} {done}\n")
    if done == what.get("at"):
        die(what)


def die(what):
    from posttrain.models import distributed

    match distributed.index():
        case rank if rank == what.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        case rank if rank == what.get("fail"):
            raise ZeroDivisionError("a bug of ours")
        case rank if rank == what.get("refuse"):
            raise ConfigurationError("a knob is wrong")
        case 0:
            Path("step").touch()


def write_episodes(step, played, advantages):
    with Path("episodes.jsonl").open("a") as file:
        for one, advantage in zip(played, advantages, strict=True):
            episode = dataclasses.asdict(one.trajectory)
            line = {name: episode[name] for name in ("task_id", "seed", "token_ids", "logprobs", "reward")}
            file.write(json.dumps({"step": step, "advantage": advantage, **line}) + "\n")


def write_result(checkpoint_dir, weights):
    import torch
    from tiny_runs import digest_of_weights

    from posttrain.train.resumable_trainer import METRICS

    states = sorted(checkpoint_dir.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    history = json.loads(states[-1].read_text())["log_history"] if states else []  # our own loop keeps none
    result = {
        "weights": digest_of_weights(weights),
        "losses": [line["loss"] for line in history if "loss" in line],
        "metrics": [json.loads(line) for line in (checkpoint_dir / METRICS).read_text().splitlines()],
    }
    Path("result.json").write_text(json.dumps(result))
    torch.save(weights, "weights.pt")


if __name__ == "__main__":
    run_stage(tiny_stage, is_launchable=True)
