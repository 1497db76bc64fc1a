"""One stage from its snapshot to its landing as a job on the cluster that KUBECONFIG names, also
where who submitted it dies."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kubernetes import client

from posttrain.dispatch.backend import Resources
from posttrain.dispatch.backends.kubernetes import KubernetesBackend
from posttrain.dispatch.dispatcher import Dispatcher, Work
from posttrain.dispatch.records import JobRecords
from posttrain.pipeline.results import record_result
from posttrain.pipeline.snapshot import Snapshot, freeze
from tests.pipeline.test_snapshot import dvc, sh
from tests.real import cluster

pytest_plugins = ["tests.real.kubernetes_fixtures"]
pytestmark = pytest.mark.needs_k8s
DVC_YAML = """
stages:
  make:
    cmd: echo x >> ../runs.log && sleep ${seconds} && cat seed > made && echo made of $(cat seed)
    deps: [seed]
    params: [seconds]
    outs: [made]
"""


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root; $(touch pwned)"
    folder.mkdir()
    sh(folder, "git", "init", "--quiet")
    dvc(folder, "init", "--quiet")
    for name, text in {"dvc.yaml": DVC_YAML, "params.yaml": "seconds: 5\n", "seed": "s\n"}.items():
        (folder / name).write_text(text)
    sh(folder, "git", "add", "--all")
    return folder


def run(namespace: str, tmp_path: Path, root: Path, owner: str) -> tuple[Snapshot, list[str]]:
    """Run a stage like a flow: freeze, dispatch, wait."""
    snapshot, told = freeze(root, "make", tmp_path / f"look-{owner}"), []

    def prepare(attempt: int) -> Path:
        return freeze(root, "make", tmp_path / f"attempt-{attempt}").folder

    environment = {"PYTHONPATH": str(cluster.REPOSITORY), "HOME": "/tmp"}
    command = (sys.executable, "-m", "posttrain.pipeline.job.shared_disk", "make")
    work = Work("make", snapshot.key, command, prepare, Resources(gpus=1, memory_gb=1, shm_gb=0.1), environment)
    pool = KubernetesBackend(cluster.settings(namespace, tmp_path), cluster.submitter(namespace))
    dispatcher = Dispatcher(
        pool, JobRecords(tmp_path / "jobs.db"), target="kubernetes", owner=owner, logs=tmp_path, poll_s=0.2
    )
    end = dispatcher.run(work, told.append)
    record, status = end.record, end.status
    assert status.exit_code == 0, (status, record.log.read_text())
    return Snapshot(record.folder, "make", snapshot.key, has_run=True), [*told, record.log.read_text()]


def test_a_stage_whose_submitter_was_killed_is_found_again_and_lands(namespace, tmp_path, root):
    flow = f"import sys; sys.path[:0] = {sys.path!r}\nfrom tests.real.test_kubernetes_stage import *\n"
    first = subprocess.Popen(
        [sys.executable, "-c", f"{flow}run({namespace!r}, Path({str(tmp_path)!r}), Path({str(root)!r}), 'first')"]
    )
    end = time.monotonic() + 60
    while not (tmp_path / "runs.log").exists():
        assert time.monotonic() < end
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    snapshot, told = run(namespace, tmp_path, root, "second")
    assert "found again" in told[0]
    assert "made of s" in told[-1]
    assert (tmp_path / "runs.log").read_text() == "x\n"
    assert len(client.BatchV1Api(cluster.admin()).list_namespaced_job(namespace).items) == 1
    assert not record_result(root, snapshot)
    assert (root / "made").read_text() == "s\n"
    assert "up to date" in dvc(root, "status", "make")


def test_a_stage_of_bad_data_ends_with_its_code(namespace, tmp_path, root):
    (root / "dvc.yaml").write_text(DVC_YAML.replace("cat seed > made", "exit 65"))
    with pytest.raises(AssertionError, match="exit_code=65"):
        run(namespace, tmp_path, root, "bad")
