"""The real `dvc repro` on the toy world with tiny knobs: it learns something, caches, repeats to
the byte, and follows edits."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.arms import apply_overrides, environment_of
from posttrain.cli.main import app
from posttrain.pipeline.plan import read_plan
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.run_records import read_records

FRAME = {
    ".posttrain",
    ".git",
    ".dvc",
    "params.yaml",
    "dvc.yaml",
    "dvc.lock",
}  # how a stage starts, and where its checkpoints are

pytestmark = [pytest.mark.smoke, pytest.mark.xdist_group("smoke")]


# Python imports this by itself. Each stage notes what it opens for reading, but for what is read
# below Python (Parquet, weights). The garbage collector would take a fifth of the time of imports.
LISTENER = """
import gc, os, sys, pathlib
gc.set_threshold(100_000)
words = sys.orig_argv
[stage] = [" ".join(words[place:]) for place, word in enumerate(words) if word.startswith("stages.")] or [""]
if stage:
    notes = open(pathlib.Path(__file__).with_name(f"opened.{os.getpid()}.txt"), "w", buffering=1)
    def note(event, arguments):
        if event == "open" and isinstance(arguments[0], str) and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            notes.write(f"{stage}\\t{os.path.abspath(arguments[0])}\\n")
    sys.addaudithook(note)
"""


@pytest.fixture(scope="module")
def pipeline(make_copy: Callable[..., Path]) -> Path:
    """After what `make run` calls; a plain `dvc repro` is tried on it below."""
    root = make_copy()
    listener = root / ".posttrain/listener"
    listener.mkdir(parents=True)
    (listener / "sitecustomize.py").write_text(LISTENER)
    environment = environment_of(root) | {"WANDB_MODE": "disabled"}
    environment["PYTHONPATH"] += os.pathsep + str(listener)
    command = [sys.executable, "-m", "posttrain.cli.main", "run"]
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert re.search(r"\[train_sft\] .* stage \d+ of 19", result.stderr)
    return root


def stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage ")]


def test_the_loss_falls_and_every_report_is_there(pipeline: Path):
    losses = [
        row["loss"] for row in map(json.loads, (pipeline / "reports/train_sft/metrics.jsonl").open()) if "loss" in row
    ]
    assert losses[-1] < 0.9 * losses[0]
    steps = [json.loads(line) for line in (pipeline / "reports/train_policy/metrics.jsonl").open()]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(0 <= row["frac_reward_zero_std"] <= 1 and row["definition_version"] for row in steps)
    for policy in ("teacher", "base", "sft", "policy"):
        report = json.loads((pipeline / f"reports/evaluate/{policy}.json").read_text())
        assert report["ci_low"] <= report["success_rate"] <= report["ci_high"]
        assert (
            report["num_tasks"]
            == len((pipeline / f"reports/evaluate/{policy}.tasks.jsonl").read_text().splitlines()) // 2
        )
    assert json.loads((pipeline / "reports/evaluate/teacher.json").read_text())["success_rate"] == 1.0
    assert "<html" in (pipeline / "reports/index.html").read_text()


def test_a_stage_reads_no_file_that_it_does_not_declare(pipeline: Path):
    stages = yaml.safe_load((pipeline / "dvc.yaml").read_text())["stages"]
    items = stages["evaluate"].pop("foreach")
    undeclared = set()
    noted = [
        line.split("\t")
        for file in pipeline.glob(".posttrain/listener/opened.*.txt")
        for line in file.read_text().splitlines()
    ]
    for command, opened in noted:
        name, _, item = command.removeprefix("stages.").partition(" ")
        stage = stages[name].get("do", stages[name])
        deps = [dep.replace("${item}", items.get(item, "")) for dep in stage["deps"]]
        outs = [
            out if isinstance(out, str) else next(iter(out))
            for key in ("outs", "metrics", "plots")
            for out in stage.get(key, [])
        ]
        path, frozen = Path(opened), pipeline / ".posttrain/frozen" / (f"{name}@{item}" if item else name)
        root = frozen if path.is_relative_to(frozen) else pipeline
        if not path.is_relative_to(root) or path.suffix in (".py", ".pyc") or path.relative_to(root).parts[0] in FRAME:
            continue
        file = re.sub(r"/\.(\w+)\.partial", r"/\1", str(path.relative_to(root)))  # an out that is being written
        if not any(
            file == one or file.startswith(f"{one}/") for one in [*deps, *(out.replace("${key}", item) for out in outs)]
        ):
            undeclared.add((command, file))
    assert {command.partition(" ")[0] for command, _ in noted} == {f"stages.{name}" for name in stages}, (
        "every stage was listened to"
    )
    assert undeclared == set()


def test_each_stage_has_left_a_record_and_the_page_of_the_run_has_them_all(pipeline: Path):
    records = read_records(pipeline)
    assert list(records) == list(lock_entries(pipeline))
    assert all(
        0 <= one.seconds <= one.whole_s and one.whole_s > 0 and one.peak_mib > 0 and one.processor
        for one in records.values()
    )
    assert "no record" not in (pipeline / ".posttrain/run.html").read_text()


def test_each_command_of_the_debuggers_page_runs(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """On a failed episode of this tree, by its expert: a model of two steps mends nothing."""
    page = (Path(__file__).parents[2] / "docs/debugger.md").read_text(encoding="utf-8")
    monkeypatch.chdir(pipeline)

    def told(command: str, stdin: str = "") -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        app(shlex.split(command)[1:])
        return capsys.readouterr().out

    failed = told("posttrain traces list --stage sample_preferences --failed").splitlines()[1].split()[0]
    typed = "\n".join(re.findall(r"^\(debug\) (.*)", page, flags=re.MULTILINE))
    assert "3 turns" not in told(f"posttrain debug {failed} --expert", typed)
    expert = "break error\ngo 1\nsay ANSWER: none\nsave 2\nundo\nfork 2\n"
    assert "2 of 2 succeed" in told(f"posttrain debug {failed} --expert", expert)
    told(f"posttrain debug {failed} --expert --suggest")
    tree = told("posttrain debug --stage sample_preferences --failed --group --expert", "tree\ncompare 0 1\n")
    assert "  3  recorded: " in tree
    assert "verified edits" in told("posttrain edits list")
    live = told('posttrain debug --live dev --expert --break "tool get_price" --num-tasks 4', "turns\nrelease\nquit\n")
    assert "4 of 4 succeed" in live


def test_a_second_repro_runs_nothing(pipeline: Path, dvc: Callable[..., Any]):
    result = dvc(pipeline, "repro")
    assert result.returncode == 0
    assert stages_run(result.stdout) == []


@pytest.mark.needs_provenance
def test_a_second_copy_gives_the_same_bytes(pipeline: Path, make_copy: Callable[..., Path]):
    other = make_copy()
    stages = [stage.name for stage in read_plan(other)]
    environment = environment_of(other) | {"WANDB_MODE": "disabled"}
    ran = subprocess.run(
        [sys.executable, "-m", "posttrain.pipeline.forked_stages", *stages],
        cwd=other,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    lock = yaml.safe_load((pipeline / "dvc.lock").read_text())["stages"]
    assert set(lock) == set(stages)
    outs = [out["path"] for stage in lock.values() for out in stage["outs"]]
    assert len(outs) > 25
    for out in outs:
        assert content(other / out) == content(pipeline / out), out


def content(path: Path) -> dict[str, bytes]:
    """Hashes of a file, or of the files in a folder, by name."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


def test_an_edit_runs_only_what_depends_on_it(pipeline: Path, dvc: Callable[..., Any]):
    apply_overrides(pipeline / "params.yaml", {"report.num_failures_shown": 3})
    assert [stage.name for stage in read_plan(pipeline) if stage.fate == "runs"] == ["check_params", "report"]
    assert stages_run(dvc(pipeline, "repro").stdout) == ["check_params", "report"]
