import os
import signal
import subprocess
import sys

import pytest

from posttrain.runtime.exits import ConfigurationError
from posttrain.tracking.metrics_log import MetricsLog, read_metrics
from posttrain.tracking.wandb_sink import SUMMARIES, wandb_sinks
from tests.tracking.offline_runs import offline_runs

wandb = pytest.importorskip("wandb")
KEY = "wandb_v1_0123456789abcdefABCDEF0123456789abcdef"


def sinks(run):
    return wandb_sinks(run, run.checkpoint_dir)


def only(runs):
    (run,) = runs
    return run


def told(sink, steps):
    for step in steps:
        sink.write(step, {"loss": 1 / step})


def test_an_offline_run_holds_the_numbers_of_the_metrics_file_below_the_state_folder(tree, stage):
    with MetricsLog(tree / "metrics.jsonl", sinks=sinks(stage("train_sft"))) as log:
        for step in range(1, 400):
            log.write(step, {"loss": 1 / step, "success": None if step == 7 else step % 3})

    run = only(offline_runs(tree / ".posttrain"))
    found = [{"success": None} | {k: v for k, v in line.items() if not k.startswith("_")} for line in run.history]
    assert found == read_metrics(tree / "metrics.jsonl")
    assert [line["_step"] for line in run.history] == list(range(1, 400))
    assert run.exit_code == 0


def test_a_run_is_of_its_pipeline_and_stage_and_its_config_is_the_whole_file_of_knobs(tree, stage):
    evaluated = stage("evaluate", "sft")
    only(sinks(evaluated)).close()

    run = only(offline_runs(tree / ".posttrain"))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert (run.run.run_group, run.run.job_type, run.run.display_name) == (
        f"trial-seed1-{commit[:7]}",
        "evaluate",
        "evaluate@sft",
    )
    assert (set(run.run.tags), run.run.git.commit) == ({"trial", commit[:7]}, commit)
    assert {name: run.config[name] for name in evaluated.params.model_dump()} == evaluated.params.model_dump(
        mode="json"
    )


def test_every_number_is_drawn_over_the_step_and_has_the_summary_that_people_compare(tree, stage):
    sink = only(sinks(stage("train_policy")))
    for step, spread in enumerate([0.5, 0.2, 0.3], start=1):
        sink.write(step, {"reward_std": spread, "frac_reward_zero_std": spread, "definition_version": 1, "new": step})
    sink.close()

    run = only(offline_runs(tree / ".posttrain"))
    assert {run.metrics[name].step_metric for name in ("*", *SUMMARIES)} == {"step"}
    assert {
        name: run.summary[name] for name in ("reward_std", "frac_reward_zero_std", "definition_version", "new")
    } == {
        "reward_std": {"min": 0.2, "last": 0.3},
        "frac_reward_zero_std": {"max": 0.5, "last": 0.3},
        "definition_version": {"last": 1},
        "new": 3,
    }


def test_an_alarm_is_an_alert_and_no_number(tree, stage):
    sink = only(sinks(stage("train_policy")))
    sink.write(3, {"loss": 0.5, "alarms": "dead_groups entropy_collapse"})
    sink.write(4, {"loss": 0.5})
    sink.close()

    run = only(offline_runs(tree / ".posttrain"))
    assert run.alerts == [
        ("dead_groups", "train_policy at step 3: dead_groups"),
        ("entropy_collapse", "train_policy at step 3: entropy_collapse"),
    ]
    assert not any("alarms" in line for line in run.history)


PROGRAM = """
import os, signal, sys
from pathlib import Path
from posttrain.config.params import load_params
from posttrain.provenance.runner import StageRun
from posttrain.tracking.wandb_sink import wandb_sinks

folder = Path(".posttrain/checkpoints/train_sft/0123456789abcdef")
(sink,) = wandb_sinks(StageRun("train_sft", "", load_params(), folder), folder)
for step in range(1, 6):
    sink.write(step, {"loss": 1 / step})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_training_that_goes_on_goes_on_in_its_run_by_step(tree, stage):
    for steps in (range(1, 6), range(1, 9)):  # the checkpoint brings some back, the rest is computed again
        sink = only(sinks(stage("train_sft")))
        told(sink, steps)
        sink.close()
    first, second = offline_runs(tree / ".posttrain")
    assert first.run.run_id == second.run.run_id
    assert [line["step"] for line in first.history + second.history] == list(range(1, 9))


def test_what_a_killed_training_may_not_have_sent_is_sent_again_at_the_same_steps(tree, stage, repository):
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    assert subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=False).returncode == -signal.SIGKILL
    second = only(sinks(stage("train_sft")))
    told(second, range(1, 9))
    second.close()
    found = offline_runs(tree / ".posttrain")
    assert len({one.run.run_id for one in found if one.run}) == 1
    assert {line["step"]: line["loss"] for one in found for line in one.history} == {
        step: 1 / step for step in range(1, 9)
    }
    assert min(path.stat().st_size for path in tree.rglob("*.wandb")) > 7, "at a file of a header `wandb sync` stops"


def test_no_file_has_the_key_of_the_environment(tree, stage, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tree / "home"))
    with MetricsLog(tree / "metrics.jsonl", sinks=sinks(stage("train_sft"))) as log:
        log.write(1, {"loss": 0.5, "note": f"the server said {KEY}"})
    files = [path for path in tree.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_nothing_is_started_when_wandb_is_disabled(tree, stage, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")

    assert sinks(stage("train_sft")) == ()
    assert not (tree / ".posttrain").exists()


def test_a_mode_that_wandb_does_not_know_is_a_wrong_configuration(tree, stage, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "ofline")

    with pytest.raises(ConfigurationError, match="ofline"):
        sinks(stage("train_sft"))


@pytest.mark.parametrize(("name", "value"), [("DIR", "params.yaml"), ("TAGS", "a" * 65)])
def test_what_wandb_cannot_use_is_a_wrong_configuration(tree, stage, monkeypatch, name, value):
    monkeypatch.setenv(f"WANDB_{name}", value)
    with pytest.raises(ConfigurationError, match="WANDB_MODE"):
        sinks(stage("train_sft"))
