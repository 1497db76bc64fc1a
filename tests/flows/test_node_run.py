"""Nodes run as jobs in snapshots: cached, completed, superseded by an edit, beside each other, found again."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.node_run import NodeRuns
from posttrain.dispatch import dispatcher
from posttrain.dispatch.local import LocalPool
from posttrain.dispatch.records import JobRecords
from posttrain.dispatch.settings import DispatchSettings, load_settings
from posttrain.dispatch.slurm import SlurmPool
from posttrain.exits import ConfigurationError, Interrupted
from posttrain.provenance.graph import read_graph

DVC_YAML = """
stages:
  train:
    cmd: date +%s%N >> {calls}; while [ -e {hold} ]; do sleep 0.05; done; grep lr params.yaml > model
    deps: [code]
    params: [lr]
    outs: [model]
  evaluate:
    foreach: [a, b]
    do:
      cmd: echo ${{item}} begins >> {calls}; sleep 1.5; echo ${{item}} ends >> {calls}; cp model score_${{item}}
      deps: [model]
      outs: ["score_${{item}}"]
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch, repository) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(repository))  # the toy tree has no code of ours
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=folder, check=True)
    (folder / "dvc.yaml").write_text(DVC_YAML.format(calls=tmp_path / "calls", hold=tmp_path / "hold"))
    (folder / "params.yaml").write_text("lr: 1\n")
    (folder / "code").write_text("c\n")
    (folder / ".gitignore").write_text("/.posttrain/\n")
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "start"], cwd=folder, check=True)
    return folder


def settings(num_gpus=2):
    return DispatchSettings.model_validate(
        {"target": "here", "targets": {"here": {"type": "local", "num_gpus": num_gpus}}, "resources": {"default": {"gpus": 1}}}
    )


def nodes(root):
    return {node.name: node for node in read_graph(root)}


def num_calls(root):
    return len((root.parent / "calls").read_text().splitlines())


def wait_for_calls(root):
    end = time.monotonic() + 60
    while not (root.parent / "calls").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_edit_while_a_stage_runs_supersedes_its_result_and_taking_it_back_needs_no_run(root):
    (root.parent / "hold").touch()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(NodeRuns(root, settings=settings()).run, nodes(root)["train"], str)
        wait_for_calls(root)
        (root / "params.yaml").write_text("lr: 2\n")
        (root.parent / "hold").unlink()
        outcome = running.result()
    assert (outcome.state, outcome.exit_code) == ("superseded", 75)
    assert "params.yaml:lr" in outcome.reason
    assert not (root / "dvc.lock").exists()
    assert not (root / "model").exists()

    (root / "params.yaml").write_text("lr: 1\n")
    outcome = NodeRuns(root, settings=settings()).run(nodes(root)["train"], str)
    assert (outcome.state, (root / "model").read_text(), num_calls(root)) == ("cached", "lr: 1\n", 1)
    assert NodeRuns(root, settings=settings()).run(nodes(root)["train"], str).state == "cached"


@pytest.mark.parametrize(("num_gpus", "order"), [(2, ["begins", "begins", "ends", "ends"]), (1, ["begins", "ends", "begins", "ends"])])
def test_items_run_beside_each_other_as_far_as_there_are_slots(root, num_gpus, order):
    runs, graph = NodeRuns(root, settings=settings(num_gpus)), nodes(root)
    assert runs.run(graph["train"], str).state == "completed"
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda name: runs.run(graph[name], str), ["evaluate@a", "evaluate@b"]))
    assert [outcome.state for outcome in ended] == ["completed", "completed"]
    assert [line.split()[1] for line in (root.parent / "calls").read_text().splitlines()[1:]] == order
    status = subprocess.run([sys.executable, "-m", "dvc", "status"], cwd=root, capture_output=True, text=True, check=True)
    assert "up to date" in status.stdout


def test_a_run_that_was_killed_leaves_its_job_to_the_next(root, tmp_path):
    (tmp_path / "hold").touch()
    flow = "from tests.flows.test_node_run import *\nroot = Path(sys.argv[1]); NodeRuns(root, settings=settings()).run(nodes(root)['train'], str)"
    first = subprocess.Popen([sys.executable, "-c", flow, str(root)], cwd=os.environ["PYTHONPATH"])
    wait_for_calls(root)
    first.kill()
    first.wait()
    told = []
    threading.Timer(1.0, (tmp_path / "hold").unlink).start()
    outcome = NodeRuns(root, settings=settings()).run(nodes(root)["train"], told.append)
    assert (outcome.state, num_calls(root), (root / "model").read_text()) == ("completed", 1, "lr: 1\n")
    assert "found again" in told[0]


def test_a_run_that_lost_sight_of_the_pool_finds_its_job_when_it_comes_again(root, tmp_path, monkeypatch):
    """What a retried task does: the same call once more."""
    (tmp_path / "hold").touch()

    def let_go(line):
        if "running" in line:
            (tmp_path / "hold").unlink(missing_ok=True)

    runs, away = NodeRuns(root, settings=settings()), threading.Event()
    status = LocalPool.status

    def status_where_it_is_not_away(pool, job_id):
        if away.is_set():
            raise Interrupted("no route to the pool")
        return status(pool, job_id)

    monkeypatch.setattr(LocalPool, "status", status_where_it_is_not_away)
    monkeypatch.setattr(dispatcher, "OUTAGE_PATIENCE_S", 0.0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runs.run, nodes(root)["train"], str)
        wait_for_calls(root)
        away.set()
        outcome = running.result(timeout=60)
        assert (outcome.state, outcome.exit_code, outcome.job) == ("failed", 75, "")
        away.clear()
        assert runs.run(nodes(root)["train"], let_go).state == "completed"
    assert num_calls(root) == 1


def test_trees_that_share_a_state_folder_run_what_they_have_in_common_once(root, tmp_path):
    subprocess.run(["git", "clone", "--quiet", str(root), str(tmp_path / "other")], check=True)
    cache = root / ".dvc" / "cache"
    (tmp_path / "other" / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {cache}\n")
    (tmp_path / "hold").touch()
    state, told = root / ".posttrain", []
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(NodeRuns(root, settings=settings(), state=state).run, nodes(root)["train"], str)
        wait_for_calls(root)
        other = NodeRuns(tmp_path / "other", settings=settings(), state=state)
        second = pool.submit(other.run, nodes(tmp_path / "other")["train"], told.append)
        while not told:
            time.sleep(0.05)
        (tmp_path / "hold").unlink()
        assert (first.result().state, second.result().state) == ("completed", "cached")
    assert "another run" in told[0]
    assert (num_calls(root), (tmp_path / "other" / "model").read_text()) == (1, "lr: 1\n")
    assert len(JobRecords(state / "jobs.db").all()) == 1


def test_a_stopped_run_leaves_no_job(root, tmp_path):
    (tmp_path / "hold").touch()
    runs = NodeRuns(root, settings=settings())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runs.run, nodes(root)["train"], str)
        wait_for_calls(root)
        runs.stop()
        with pytest.raises(Interrupted):
            running.result(timeout=10)
    assert not subprocess.run(["pgrep", "-f", str(tmp_path / "hold")], capture_output=True, text=True, check=False).stdout


def test_the_repositorys_own_settings_name_every_stage_and_wrong_ones_are_refused(repository, tmp_path):
    ours = load_settings(repository)
    stages = {node.stage for node in read_graph(repository)}
    assert set(ours.resources) - {"default"} <= stages
    assert ours.resources_of("train_sft").gpus == 1
    assert ours.is_local
    assert isinstance(ours.pool("slurm", repository, tmp_path), SlurmPool)
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "dispatch.yaml").write_text("target: slrum\ntargets: {}\nresources: {train_sft: {gpu: 1}}\n")
    with pytest.raises(ConfigurationError, match="gpu"):
        load_settings(tmp_path)
    with pytest.raises(ConfigurationError, match="slrum"):
        DispatchSettings(target="slrum", targets={}, resources={}).pool("slrum", repository, tmp_path)
