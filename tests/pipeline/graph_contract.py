"""Contract of a graph's nodes on any target: run, wait with a reason, found again, superseded,
cancelled.

A target's tests inherit `GraphContract` and give `settings`; the same toy graph then runs there.
"""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from posttrain.dispatch.records import JobRecords
from posttrain.dispatch.settings import DispatchSettings
from posttrain.pipeline.executor import NodeOutcome, StageExecutor
from posttrain.pipeline.graph import StageNode, read_graph
from posttrain.runtime.exits import Interrupted
from tests.conftest import REPOSITORY
from tests.dvc_trees import dvc, init_dvc

DVC_YAML = """
stages:
  train:
    cmd: echo begins >> ../calls; while [ -e ../hold ]; do sleep 0.05; done; grep lr params.yaml > model
    deps: [code]
    params: [lr]
    outs: [model]
  evaluate:
    foreach: [a, b, c]
    do:
      cmd: >-
        echo ${item} begins >> ../calls; while [ -e ../hold ]; do sleep 0.05; done;
        echo ${item} ends >> ../calls; cp model score_${item}
      deps: [model]
      outs: ["score_${item}"]
"""


class GraphContract:
    """`root` is the person's folder; what jobs write to `../calls` tells what ran, and `../hold`
    keeps them."""

    patience_s = 120.0
    waits_for = "GPU"  # in the note of a job that waits for a free GPU, in any case

    @pytest.fixture
    def settings(self, tmp_path: Path) -> DispatchSettings:
        raise NotImplementedError

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        folder = tmp_path / "root; $(touch pwned)"
        folder.mkdir()
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
        init_dvc(folder)
        (folder / "dvc.yaml").write_text(DVC_YAML.replace("../", f"{tmp_path}/"))  # a snapshot lies elsewhere
        (folder / "params.yaml").write_text("lr: 1\n")
        (folder / "code").write_text(
            uuid.uuid4().hex
        )  # of the keys, and so of the jobs' names, which a cluster remembers
        (folder / ".gitignore").write_text("/.posttrain/\n")
        self.furnish(folder)
        return folder

    def furnish(self, root: Path) -> None:
        """Add the other files that the target needs in the person's folder."""

    @pytest.fixture
    def runs(self, root: Path, settings: DispatchSettings) -> StageExecutor:
        return StageExecutor(root, settings=settings)

    def test_the_lock_is_that_of_dvc_repro_and_a_second_run_is_cached(self, root, runs, settings):
        assert [runs.run(node, str).state for node in read_graph(root)] == ["completed"] * 4
        ours = (root / "dvc.lock").read_bytes()
        again = [StageExecutor(root, settings=settings).run(node, str).state for node in read_graph(root)]
        assert again == ["cached"] * 4
        assert dvc(root, "repro", "--force", "--quiet").returncode == 0
        assert (root / "dvc.lock").read_bytes() == ours

    def test_three_items_on_two_gpus_two_run_and_the_third_says_why_it_waits(self, root, runs):
        graph = nodes(root)
        assert runs.run(graph["train"], str).state == "completed"
        hold(root).touch()
        told: list[str] = []
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(runs.run, graph[f"evaluate@{item}"], told.append) for item in "abc"]
            try:
                self.wait_until(
                    lambda: (
                        len(calls(root)) == 3
                        and any("waiting" in line and self.waits_for in line.upper() for line in told)
                    )
                )
                assert [line.split()[-1] for line in calls(root)[1:]] == ["begins", "begins"]
            finally:  # the pool's end waits for all three
                hold(root).unlink()
            assert [one.result().state for one in running] == ["completed"] * 3
        assert not (root.parent / "pwned").exists()

    def test_an_edit_while_a_stage_runs_supersedes_its_result_and_taking_it_back_needs_no_run(
        self, root, runs, settings
    ):
        outcome = self.train_and_meanwhile(root, runs, lambda: (root / "params.yaml").write_text("lr: 2\n"))
        assert (outcome.state, outcome.exit_code) == ("superseded", 75)
        assert "params.yaml:lr" in outcome.reason
        assert not (root / "dvc.lock").exists()
        assert not (root / "model").exists()
        (root / "params.yaml").write_text("lr: 1\n")
        outcome = StageExecutor(root, settings=settings).run(nodes(root)["train"], str)
        assert (outcome.state, (root / "model").read_text(), len(calls(root))) == ("cached", "lr: 1\n", 1)

    def test_a_run_that_was_killed_leaves_its_job_to_the_next_and_it_lands_once(self, root, settings):
        self.die_while_it_trains(root, settings)
        told: list[str] = []

        def tell(line: str) -> None:
            told.append(line)
            hold(root).unlink(missing_ok=True)

        outcome = StageExecutor(root, settings=settings).run(nodes(root)["train"], tell)
        assert (outcome.state, len(calls(root)), (root / "model").read_text()) == ("completed", 1, "lr: 1\n")
        assert [line for line in told if "found again" in line]
        assert len(JobRecords(root / ".posttrain/jobs.db").all()) == 1

    def test_two_runs_that_want_the_same_have_one_job_and_it_lands_in_both(self, root, runs, settings):
        hold(root).touch()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(runs.run, nodes(root)["train"], str)
            self.wait_until(lambda: calls(root))
            told: list[str] = []
            second = pool.submit(StageExecutor(root, settings=settings).run, nodes(root)["train"], told.append)
            self.wait_until(lambda: told)
            hold(root).unlink()
            assert (first.result().state, second.result().state) == ("completed", "cached")
        assert (len(calls(root)), list((root / ".posttrain/snapshots").iterdir())) == (1, [])

    def test_a_stopped_run_leaves_no_job(self, root, runs):
        hold(root).touch()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(runs.run, nodes(root)["train"], str)
            self.wait_until(lambda: calls(root))
            runs.stop()
            with pytest.raises(Interrupted):
                running.result(timeout=15)
        assert not subprocess.run(["pgrep", "-f", str(hold(root))], capture_output=True, text=True, check=False).stdout
        assert list((root / ".posttrain/snapshots").iterdir()) == []

    def test_what_a_killed_runs_job_came_to_meanwhile_is_read_and_lands(self, root, settings):
        self.die_while_it_trains(root, settings)
        hold(root).unlink()
        pool, records = (
            settings.backend(settings.target, root, root / ".posttrain"),
            JobRecords(root / ".posttrain/jobs.db"),
        )
        self.wait_until(lambda: pool.status(records.all()[0].handle).is_over)
        assert StageExecutor(root, settings=settings).run(nodes(root)["train"], str).state == "completed"
        assert [record.exit_code for record in records.all()] == [0]
        assert (len(calls(root)), list((root / ".posttrain/snapshots").iterdir())) == (1, [])

    def test_a_stage_that_fails_says_its_code_and_runs_once(self, root, runs):
        (root / "dvc.yaml").write_text((root / "dvc.yaml").read_text().replace("grep lr", "exit 3; grep lr"))
        outcome = runs.run(nodes(root)["train"], str)
        assert (outcome.state, outcome.exit_code, len(calls(root))) == ("failed", 3, 1)
        assert "exit code 3" in outcome.reason
        assert list((root / ".posttrain/snapshots").iterdir()) == []

    def train_and_meanwhile(self, root: Path, runs: StageExecutor, act: Callable[[], object]) -> NodeOutcome:
        """`act` while the command of `train` runs; how it then ended."""
        hold(root).touch()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(runs.run, nodes(root)["train"], str)
            self.wait_until(lambda: calls(root))
            act()
            hold(root).unlink()
            return running.result()

    def die_while_it_trains(self, root: Path, settings: DispatchSettings) -> None:
        """A run in a process of its own that is killed once the command of `train` runs, which goes
        on and is held."""
        hold(root).touch()
        flow = f"import sys; from {__name__} import *; run_train(Path(sys.argv[1]), sys.argv[2])"
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        run = subprocess.Popen([sys.executable, "-c", flow, str(root), settings.model_dump_json()], env=environment)
        self.wait_until(lambda: calls(root))
        run.kill()
        run.wait()

    def wait_until(self, condition) -> None:
        end = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)


def run_train(root: Path, settings: str) -> None:
    """In a process of its own, to be killed."""
    StageExecutor(root, settings=DispatchSettings.model_validate_json(settings)).run(nodes(root)["train"], str)


def nodes(root: Path) -> dict[str, StageNode]:
    return {node.name: node for node in read_graph(root)}


def calls(root: Path) -> list[str]:
    file = root.parent / "calls"
    return file.read_text().splitlines() if file.exists() else []


def hold(root: Path) -> Path:
    return root.parent / "hold"
