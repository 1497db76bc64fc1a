"""Nodes run as jobs that share no disk with the submitter: an empty folder, a DVC cache of their
own, and S3 between."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from posttrain.dispatch.processes import kill_tree
from posttrain.dispatch.settings import DispatchSettings
from posttrain.pipeline.executor import StageExecutor
from posttrain.pipeline.graph import read_graph
from posttrain.pipeline.remote.checkpoints import CHECKPOINT, MARKER
from posttrain.traces.store import VARIABLE
from tests.s3_server import BUCKET, KEYS, planted, serve
from tests.traces.episodes import ids
from tests.tracking.toy_pipeline import check_pipeline, make_experiment, run_pipeline
from tests.waiting import wait_until
from tests.wire import Wire

pytestmark = pytest.mark.needs_s3
ITEM = "a b; $(touch pwned) 'q'"
DVC_YAML = f"""
stages:
  prepare:
    cmd: mkdir -p data/folder && cp seed data/folder/one && cp seed data/folder/two && python -m dvc cache dir
    deps: [seed]
    params: [odd, small]
    outs: [data/folder]
  use:
    foreach:
      {ITEM!r}: 1
    do:
      cmd: mkdir -p reports && cat data/folder/two params.yaml > reports/text && cp reports/text big
      deps: [data/folder]
      params: [odd]
      outs: [big, reports/text: {{cache: false}}]
  train:
    cmd: python train.py
    deps: [seed, train.py]
    outs: [model]
  fail:
    cmd: python record.py && exit 65
    deps: [record.py]
    outs: [never]
  reads_nothing:
    cmd: echo x > nothing
    outs: [nothing]
"""
TRAIN = """
import pathlib, signal, sys, time
from posttrain.train.checkpointing import newest_complete, prune, seal

calls, hold = pathlib.Path({calls!r}), pathlib.Path({hold!r})
folder = pathlib.Path(".posttrain/checkpoints/train/0123456789abcdef")
folder.mkdir(parents=True, exist_ok=True)
found = newest_complete(folder)
first = int(found.name.removeprefix("checkpoint-")) + 1 if found else 1
with calls.open("a") as lines:
    lines.write(f"from {{first}}\\n")
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
for step in range(first, 7):
    checkpoint = folder / f"checkpoint-{{step}}"
    checkpoint.mkdir()
    (checkpoint / "weights; $(touch pwned)").write_text(str(step))
    if step != 5:
        seal(checkpoint)
    prune(folder, keep=None)
    while step == 3 and hold.exists() and not asked:
        time.sleep(0.05)
    if asked:
        sys.exit(75)
pathlib.Path("model").write_text("trained\\n")
"""
RECORD = """
import pathlib
from tests.traces.episodes import opened, record

pathlib.Path(".posttrain").mkdir(exist_ok=True)
record(pathlib.Path(".posttrain/traces.db"), "train_policy", [opened()] * 3)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


@pytest.fixture
def root(tmp_path, monkeypatch, repository):
    folder = tmp_path / "root; $(touch pwned)"
    folder.mkdir()
    monkeypatch.delenv(VARIABLE, raising=False)
    for name, text in {
        **KEYS,
        "PYTHONPATH": str(repository),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, text)
    subprocess.run(["git", "init", "--quiet", "--initial-branch", "b;$(touch-pwned)'\""], cwd=folder, check=True)
    dvc(folder, "init", "--quiet")
    files = {
        "dvc.yaml": DVC_YAML,
        "params.yaml": 'odd: "; $(touch pwned) \'q\' \\""\nsmall: 5.0e-5\n',  # which DVC writes as 5e-05
        "seed": "s\n",
        "train.py": TRAIN.format(calls=str(tmp_path / "calls"), hold=str(tmp_path / "hold")),
        "record.py": RECORD,
        "with a ' \" $(touch pwned) name": "x",
        ".gitignore": "/.posttrain/\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def dvc(root, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout


def settings(url, place="tests", **storage):
    s3 = {"type": "s3", "url": f"s3://{BUCKET}/{place}", "endpoint_url": url, "ship_every_s": 0.2, **storage}
    target = {"type": "local", "num_gpus": 1, "storage": s3}
    return DispatchSettings.model_validate({"target": "here", "targets": {"here": target}, "resources": {}})


def run(root, name, chosen, tell=lambda _: None):
    with closing(StageExecutor(root, settings=chosen)) as runs:
        return runs.run({node.name: node for node in read_graph(root)}[name], tell)


def leaked(server, place, folder, told):
    """Files, objects and lines with one of the keys."""
    texts = {name: server.read(name) for name in server.names(place)} | {line: line.encode() for line in told}
    return planted(folder) + [
        name for name, text in texts.items() if any(key.encode() in text for key in KEYS.values())
    ]


def supervisor_of(root):
    (lock,) = (root / ".posttrain" / "local" / "jobs").glob("train-*/lock")
    return int(lock.read_text())


def test_results_come_back_through_s3_alone_and_the_lock_file_is_that_of_dvc_repro(root, server, tmp_path):
    told = []
    use = f"use@{ITEM}"
    assert run(root, "prepare", settings(server.url, "whole"), told.append).state == "completed"
    cache = next(Path(line) for line in told if line.endswith("cache"))
    assert cache != root / ".dvc" / "cache"
    assert ".posttrain/snapshots/prepare-" in str(cache), "of the job's own"
    assert run(root, use, settings(server.url, "whole"), told.append).state == "completed"
    assert (
        (root / "reports" / "text").read_text()
        == (root / "big").read_text()
        == "s\n" + (root / "params.yaml").read_text()
    )
    by_jobs = [(root / name).read_bytes() for name in ("dvc.lock", ".gitignore", "data/.gitignore")]
    assert "up to date" in dvc(root, "status", "prepare", use)
    assert {name.split("/")[1] for name in server.names("whole/")} == {"dvc"}, "nothing but caches is left"
    assert not list(tmp_path.rglob("pwned"))
    assert not leaked(server, "whole/", tmp_path, told)

    for name in ("dvc.lock", "data/.gitignore"):
        (root / name).unlink()
    (root / ".gitignore").write_text("/.posttrain/\n")
    shutil.rmtree(root / ".dvc" / "cache")
    dvc(root, "repro", "prepare", use)
    assert [(root / name).read_bytes() for name in ("dvc.lock", ".gitignore", "data/.gitignore")] == by_jobs


def test_a_second_process_of_one_attempt_leaves_at_once(root, server, tmp_path):
    (tmp_path / "hold").touch()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, root, "train", settings(server.url, "twice"))
        wait_until((tmp_path / "calls").exists)
        (spec,) = (root / ".posttrain" / "local" / "jobs").glob("train-*/spec.json")
        job = json.loads(spec.read_text())
        (tmp_path / "second").mkdir()
        environment = {**os.environ, **job["environment"]}
        second = subprocess.run(
            job["command"], cwd=tmp_path / "second", env=environment, capture_output=True, text=True, check=False
        )
        (tmp_path / "hold").unlink()
        assert running.result(180).state == "completed"
    assert (second.returncode, (tmp_path / "calls").read_text()) == (75, "from 1\n")
    assert "another process as attempt 1" in second.stderr


@pytest.mark.parametrize("end", ["preempted", "lost"])
def test_a_job_that_is_preempted_or_lost_goes_on_from_what_it_has_shipped(root, server, tmp_path, end):
    (tmp_path / "hold").touch()
    place = f"resumed/{end}"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, root, "train", settings(server.url, place))
        wait_until(lambda: any(name.endswith(f"{CHECKPOINT}3/{MARKER}") for name in server.names(place)))
        assert not leaked(server, place, tmp_path, [])
        assert sum(name.endswith(MARKER) for name in server.names(place)) <= 3
        supervisor = supervisor_of(root)
        if end == "preempted":
            os.kill(supervisor, signal.SIGTERM)
        else:
            os.kill(supervisor, signal.SIGSTOP)  # or it would see its job die, and say so
            kill_tree(supervisor)
        (tmp_path / "hold").unlink()
        outcome = running.result(180)
    assert (outcome.state, outcome.num_preempted, (root / "model").read_text()) == ("completed", 1, "trained\n")
    assert (tmp_path / "calls").read_text() == "from 1\nfrom 4\n"
    assert {name.split("/")[2] for name in server.names(place)} == {"dvc"}


def test_a_job_that_fails_leaves_its_traces_and_no_snapshot(root, server, tmp_path):
    told = []
    outcome = run(root, "fail", settings(server.url, "failed"), told.append)
    assert (outcome.state, outcome.exit_code) == ("failed", 65)
    assert len(ids(root / ".posttrain" / "traces.db")) == 3
    assert "3 episodes are in the trace store" in told
    assert not server.names("failed/jobs/")
    assert not leaked(server, "failed/", tmp_path, told)


@pytest.mark.usefixtures("root")  # its environment
def test_runs_of_weights_and_biases_come_back_as_of_the_pipelines_group(server, tmp_path):
    worktree = make_experiment(tmp_path / "flow")
    found = run_pipeline(worktree, settings(server.url, "wandb"))
    check_pipeline(worktree, found)
    assert not [name for name in server.names("wandb/") if "/jobs/" in name]


def test_an_s3_that_is_away_while_the_stage_runs_is_waited_for(root, server, tmp_path):
    (tmp_path / "hold").touch()
    wire, told = Wire(server.url), []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, root, "train", settings(wire.url, "away", patience_s=90), told.append)
        wait_until((tmp_path / "calls").exists)
        wire.cut()
        (tmp_path / "hold").unlink()
        threading.Timer(20.0, wire.mend).start()
        outcome = running.result(180)
    wire.cut()
    assert (outcome.state, (tmp_path / "calls").read_text()) == ("completed", "from 1\n")
    assert [line for line in told if "does not answer" in line]


def test_an_s3_that_stays_away_interrupts_and_what_was_made_later_another_tree_does_not_run_again(root, server):
    wire = Wire(server.url)
    wire.cut()
    outcome = run(root, "prepare", settings(wire.url, "down", patience_s=1))
    assert (outcome.state, outcome.exit_code) == ("failed", 75)
    assert "does not answer" in outcome.reason
    assert "endpoint_url" in outcome.reason
    wire.mend()
    assert run(root, "prepare", settings(wire.url, "down")).state == "completed"
    wire.cut()

    for gone in (root / ".dvc" / "cache", root / "data", root / ".posttrain"):
        shutil.rmtree(gone)
    (root / "dvc.lock").unlink()
    outcome = run(root, "prepare", settings(server.url, "down"))
    assert (outcome.state, outcome.job, (root / "data/folder/two").read_text()) == ("cached", "", "s\n")


def test_a_stage_that_the_run_cache_cannot_keep_is_refused_before_it_runs(root, server):
    outcome = run(root, "reads_nothing", settings(server.url, "refused"))
    assert (outcome.state, outcome.exit_code, outcome.job) == ("failed", 78, "")
    assert "no deps or no outs" in outcome.reason


def test_a_bucket_that_is_not_there_fails_before_a_job_is_started(root, server):
    chosen = settings(server.url)
    wrong = chosen.targets["here"].storage.model_copy(update={"url": "s3://none"})
    target = chosen.targets["here"].model_copy(update={"storage": wrong})
    outcome = run(root, "prepare", chosen.model_copy(update={"targets": {"here": target}}))
    assert (outcome.exit_code, outcome.job) == (78, "")
    assert "no bucket 'none'" in outcome.reason
