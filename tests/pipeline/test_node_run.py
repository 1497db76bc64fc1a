"""The flow's contract on this machine, and the settings that the repository itself has."""

import json
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from posttrain.dispatch import dispatcher
from posttrain.dispatch.backends.local import LocalBackend
from posttrain.dispatch.backends.slurm import SlurmBackend
from posttrain.dispatch.backends.slurm_states import EXTRA_MINUTES
from posttrain.dispatch.records import JobRecords
from posttrain.dispatch.settings import DispatchSettings, load_settings
from posttrain.pipeline import executor
from posttrain.pipeline.executor import StageExecutor
from posttrain.pipeline.graph import is_current, read_graph
from posttrain.runtime.exits import ConfigurationError, Interrupted
from tests.pipeline.graph_contract import GraphContract, calls, hold, nodes

pytestmark = pytest.mark.needs_provenance


def local(num_gpus: int = 2) -> DispatchSettings:
    return DispatchSettings.model_validate(
        {
            "target": "here",
            "targets": {"here": {"type": "local", "num_gpus": num_gpus}},
            "resources": {"default": {"gpus": 1}},
        }
    )


def clone(root: Path, folder: Path) -> Path:
    """Clone of `root` as it is now, committed, which shares DVC's cache."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "--all"], cwd=root, check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "start"], cwd=root, check=True)
    subprocess.run(["git", "clone", "--quiet", str(root), str(folder)], check=True)
    (folder / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {json.dumps(str(root / '.dvc' / 'cache'))}\n")
    return folder


class TestLocal(GraphContract):
    @pytest.fixture
    def settings(self):
        return local()

    def test_with_one_slot_items_run_one_after_another(self, root):
        runs, graph = StageExecutor(root, settings=local(1)), nodes(root)
        assert runs.run(graph["train"], str).state == "completed"
        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(lambda name: runs.run(graph[name], str), ["evaluate@a", "evaluate@b"]))
        assert [outcome.state for outcome in ended] == ["completed", "completed"]
        assert [line.split()[1] for line in calls(root)[1:]] == ["begins", "ends", "begins", "ends"]

    def test_dvc_is_asked_again_only_about_what_comes_after_a_landing(self, root, settings, monkeypatch):
        asked = []
        monkeypatch.setattr(executor, "is_current", lambda _root, name: asked.append(name) or is_current(_root, name))
        assert StageExecutor(root, settings=settings).run(nodes(root)["train"], str).state == "completed"
        runs = StageExecutor(root, settings=settings)
        assert [runs.run(node, str).state for node in read_graph(root)] == ["cached", *["completed"] * 3]
        assert asked == []
        (root / "params.yaml").write_text("lr: 2\n")
        runs = StageExecutor(root, settings=settings)
        assert {runs.run(node, str).state for node in read_graph(root)} == {"completed"}
        assert asked == ["evaluate@a", "evaluate@b", "evaluate@c"]

    def test_inputs_of_a_snapshot_are_links_into_dvcs_cache(self, root, runs):
        graph = nodes(root)
        runs.run(graph["train"], str)
        (root / "dvc.yaml").write_text(
            (root / "dvc.yaml").read_text().replace("cp model", "stat -c links=%h model; cp model")
        )
        told = []
        runs.run(graph["evaluate@a"], told.append)
        assert [line for line in told if line.startswith("links=") and int(line[6:]) > 1]

    def test_a_run_that_lost_sight_of_the_pool_finds_its_job_when_it_comes_again(self, root, runs, monkeypatch):
        """A retried task makes the same call once more."""
        hold(root).touch()
        away, status = threading.Event(), LocalBackend.status

        def status_where_it_is_not_away(pool, job_id):
            if away.is_set():
                raise Interrupted("no route to the pool")
            return status(pool, job_id)

        def let_go(line):
            if "running" in line:
                hold(root).unlink(missing_ok=True)

        monkeypatch.setattr(LocalBackend, "status", status_where_it_is_not_away)
        monkeypatch.setattr(dispatcher, "OUTAGE_PATIENCE_S", 0.0)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(runs.run, nodes(root)["train"], str)
            self.wait_until(lambda: calls(root))
            away.set()
            outcome = running.result(timeout=60)
            assert (outcome.state, outcome.exit_code, outcome.job) == ("failed", 75, "")
            away.clear()
            assert runs.run(nodes(root)["train"], let_go).state == "completed"
        assert len(calls(root)) == 1

    @pytest.mark.parametrize("num_killed", [1, 3], ids=["the supervisor", "the supervisor, its guard and the job"])
    def test_a_stage_whose_supervisor_is_killed_never_runs_beside_its_second_attempt(self, root, runs, num_killed):
        hold(root).touch()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(runs.run, nodes(root)["train"], str)
            self.wait_until(lambda: calls(root))
            chain = [
                process
                for process in psutil.process_iter(["cmdline"])
                if str(root / ".posttrain/local/jobs") in str(process.info["cmdline"])
            ]
            while len(chain) < num_killed:
                chain += chain[-1].children()
            for process in chain[:num_killed]:
                process.suspend()
            for process in chain[:num_killed]:
                process.kill()
            self.wait_until(lambda: len(calls(root)) == 2)
            shells = [
                process.cwd()
                for process in psutil.process_iter(["cmdline"])
                if str(hold(root)) in str(process.info["cmdline"])
            ]
            hold(root).unlink()
            assert [Path(cwd).name[-2:] for cwd in shells] == ["-2"]
            outcome = running.result(timeout=60)
        assert (outcome.state, outcome.num_preempted, len(calls(root))) == ("completed", 1, 2)

    def test_what_a_killed_run_left_is_gone_after_the_next_though_that_wants_something_else(self, root, settings):
        self.die_while_it_trains(root, settings)
        state = root / ".posttrain"
        pool, records = settings.backend(settings.target, root, state), JobRecords(state / "jobs.db")
        assert [len(list((state / folder).iterdir())) for folder in ("snapshots", "runs", "keys")] == [2, 1, 1]
        hold(root).unlink()
        self.wait_until(lambda: pool.status(records.all()[0].handle).is_over)
        (root / "params.yaml").write_text("lr: 2\n")
        runs = StageExecutor(root, settings=settings)
        assert runs.run(nodes(root)["train"], str).state == "completed"
        runs.close()
        assert [len(list((state / folder).iterdir())) for folder in ("snapshots", "runs", "keys")] == [0, 0, 0]
        assert [record.exit_code for record in records.all()] == [0, 0]
        (root / "params.yaml").write_text("lr: 1\n")
        assert (StageExecutor(root, settings=settings).run(nodes(root)["train"], str).state, len(calls(root))) == (
            "cached",
            2,
        )  # nothing is lost

    def test_what_lives_of_a_killed_runs_job_is_killed_by_the_next_run_whatever_that_wants(self, root, settings):
        self.die_while_it_trains(root, settings)
        supervisors = [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(root / ".posttrain/local/jobs") in str(process.info["cmdline"])
        ]
        supervisors += supervisors[0].children()
        for process in supervisors:
            process.suspend()
        for process in supervisors:
            process.kill()
        psutil.wait_procs(supervisors, timeout=10)
        StageExecutor(root, settings=settings)
        assert not [
            process for process in psutil.process_iter(["cmdline"]) if str(hold(root)) in str(process.info["cmdline"])
        ]

    def test_what_a_run_keeps_is_its_users_alone_and_no_key_of_the_environment_is_in_it(
        self, root, settings, monkeypatch
    ):
        for name in ("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "PREFECT_API_AUTH_STRING"):
            monkeypatch.setenv(name, "not-to-be-written-down")
        state = root / ".posttrain"
        state.mkdir(mode=0o755)
        runs = StageExecutor(root, settings=settings)
        with sqlite3.connect(state / "jobs.db") as connection:  # so that its write-ahead log is there
            connection.execute("SELECT * FROM jobs").fetchall()
            assert runs.run(nodes(root)["train"], str).state == "completed"
            kept = [state, *state.rglob("*")]
            names = {path.name for path in kept}
            assert {"jobs.db", "jobs.db-wal", "jobs.db-shm", "spec.json", "logs", "snapshots", "runs", "keys"} <= names
            stages = {
                path for path in kept if "checkpoints" in path.parts
            }  # what a stage writes itself, below a folder that is private
            assert {(path.is_dir(), oct(path.stat().st_mode & 0o777)) for path in {*kept} - stages} == {
                (True, "0o700"),
                (False, "0o600"),
            }
        assert not [path for path in kept if path.is_file() and b"not-to-be-written-down" in path.read_bytes()]

    def test_trees_that_share_a_state_folder_run_what_they_have_in_common_once(self, root, tmp_path, settings):
        other, state, told = clone(root, tmp_path / "other"), root / ".posttrain", []
        hold(root).touch()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(StageExecutor(root, settings=settings, state=state).run, nodes(root)["train"], str)
            self.wait_until(lambda: calls(root))
            second = pool.submit(
                StageExecutor(other, settings=settings, state=state).run, nodes(other)["train"], told.append
            )
            self.wait_until(lambda: told)
            hold(root).unlink()
            assert (first.result().state, second.result().state) == ("completed", "cached")
        assert "another run" in told[0]
        assert (len(calls(root)), (other / "model").read_text()) == (1, "lr: 1\n")
        assert len(JobRecords(state / "jobs.db").all()) == 1

    def test_what_another_tree_made_takes_the_place_of_reports_that_only_git_has(self, root, tmp_path, settings):
        """For example in two experiments on a clone whose reports are committed and whose cache is
        empty."""
        text = (root / "dvc.yaml").read_text().replace("> model\n", "> model; cp model report\n", 1)
        (root / "dvc.yaml").write_text(text.replace("outs: [model]", "outs: [model, report: {cache: false}]", 1))
        (root / "report").write_text("an older one\n")
        other, state = clone(root, tmp_path / "other"), root / ".posttrain"
        states = [
            StageExecutor(tree, settings=settings, state=state).run(nodes(tree)["train"], str).state
            for tree in (root, other)
        ]
        assert (states, len(calls(root))) == (["completed", "cached"], 1)
        assert (other / "report").read_text() == (other / "model").read_text() == "lr: 1\n"

    def test_beside_a_dvc_repro_by_hand_it_says_to_come_again(self, root, runs, settings):
        hold(root).touch()
        by_hand = subprocess.Popen(
            [sys.executable, "-m", "dvc", "repro", "--quiet", "train"], cwd=root, stdin=subprocess.DEVNULL
        )
        self.wait_until(lambda: calls(root))
        with pytest.raises(Interrupted, match="another dvc runs a stage"):
            StageExecutor(root, settings=settings)
        runs._recorded.add("train")  # so that it asks again
        outcome = runs.run(nodes(root)["evaluate@a"], str)
        assert (outcome.state, outcome.exit_code, "another dvc" in outcome.reason) == ("failed", 75, True)
        hold(root).unlink()
        assert by_hand.wait(60) == 0
        assert runs.run(nodes(root)["evaluate@a"], str).state == "completed"

    def test_a_graph_that_cannot_be_read_when_a_result_comes_is_named_and_the_result_kept(self, root, runs, settings):
        whole = (root / "dvc.yaml").read_text()
        outcome = self.train_and_meanwhile(root, runs, lambda: (root / "dvc.yaml").write_text("stages: {train: [\n"))
        assert (outcome.state, outcome.exit_code, "could not be recorded" in outcome.reason) == ("failed", 78, True)
        (root / "dvc.yaml").write_text(whole)
        assert StageExecutor(root, settings=settings).run(nodes(root)["train"], str).state == "cached"
        assert len(calls(root)) == 1

    def test_a_reservation_for_no_stage_is_refused(self, root):
        (root / "infra").mkdir(exist_ok=True)
        text = json.dumps(
            {
                "target": "here",
                "targets": {"here": {"type": "local", "num_gpus": 1}},
                "resources": {"trian": {"gpus": 1}},
            }
        )
        (root / "infra" / "dispatch.yaml").write_text(text)
        with pytest.raises(ConfigurationError, match="reserved for trian"):
            StageExecutor(root)

    def test_trees_of_runs_that_died_while_freezing_are_cleared_away(self, root, runs, settings):
        dead, living = (root / ".posttrain" / "snapshots" / f".{owner}-1" for owner in ("dead", runs._owner.name))
        for folder in (dead, living):
            folder.mkdir(parents=True)
        StageExecutor(root, settings=settings)
        assert (dead.exists(), living.exists()) == (False, True)


def test_the_repositorys_own_settings_name_every_stage_and_wrong_ones_are_refused(repository, tmp_path):
    ours = load_settings(repository)
    stages = {node.stage for node in read_graph(repository)}
    assert set(ours.resources) - {"default"} <= stages
    assert ours.resources_of("train_sft").gpus == 1
    assert all(
        ours.resources_of(stage).time_limit_s <= (24 * 60 - EXTRA_MINUTES) * 60 for stage in stages
    )  # a partition of a day takes it
    assert ours.is_local(ours.target)
    elsewhere = ours.model_copy(update={"target": "slurm"})
    assert [elsewhere.target_of(stage) for stage in ("validate_data", "train_sft", "report")] == [
        "local",
        "slurm",
        "local",
    ]
    assert isinstance(ours.backend("slurm", repository, tmp_path), SlurmBackend)
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "dispatch.yaml").write_text("target: slrum\ntargets: {}\nresources: {train_sft: {gpu: 1}}\n")
    with pytest.raises(ConfigurationError, match="gpu"):
        load_settings(tmp_path)
    for wrong in (
        {"url": "s3://b"},
        {"url": "s3://bucket/../x"},
        {"url": "bucket"},
        {"endpoint_url": "http://me:key@host"},
        {"key": "x"},
    ):
        storage = {"type": "s3", "url": "s3://bucket/x", **wrong}
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DispatchSettings.model_validate(
                {"target": "x", "targets": {"x": {"type": "local", "num_gpus": 1, "storage": storage}}, "resources": {}}
            )
    with pytest.raises(ValueError, match="storage"):  # its logs and folders are on a disk that all see
        DispatchSettings.model_validate(
            {
                "target": "x",
                "targets": {"x": {"type": "slurm", "storage": {"type": "s3", "url": "s3://bucket/x"}}},
                "resources": {},
            }
        )
    with pytest.raises(ValueError, match="target 'slrum' is none of slurm"):
        DispatchSettings.model_validate({"target": "slrum", "targets": {"slurm": {"type": "slurm"}}, "resources": {}})
    with pytest.raises(ConfigurationError, match="no target 'gone'"):
        ours.backend("gone", repository, tmp_path)
