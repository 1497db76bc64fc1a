"""Stages as pods that mount nothing of the tree: what they read and make goes through a real S3
server, their keys come from a Secret."""

import base64
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kubernetes import client

from posttrain.dispatch.backend import JobSpec, Resources
from posttrain.dispatch.backends.kubernetes import KubernetesBackend
from posttrain.dispatch.settings import DispatchSettings
from posttrain.pipeline.executor import StageExecutor
from posttrain.pipeline.graph import read_graph
from posttrain.pipeline.remote.checkpoints import CHECKPOINT, MARKER
from tests.pipeline.test_snapshot import dvc, sh
from tests.real import cluster
from tests.s3_server import BUCKET, KEYS, planted, serve
from tests.tracking.toy_pipeline import check_pipeline, make_experiment, run_pipeline

pytest_plugins = ["tests.real.kubernetes_fixtures"]
pytestmark = pytest.mark.needs_k8s
SECRET = "posttrain-keys"
DVC_YAML = """
stages:
  prepare:
    cmd: mkdir -p data && cp seed data/made && echo made in $(pwd)
    deps: [seed]
    outs: [data/made]
  train:
    cmd: python train.py && cat data/made >> model && mkdir -p reports && cp model reports/copy
    deps: [data/made, train.py]
    params: [odd]
    outs: [model, reports/copy: {cache: false}]
"""
TRAIN = """
import pathlib, signal, sys, time
from posttrain.train.checkpointing import newest_complete, seal

folder = pathlib.Path(".posttrain/checkpoints/train/0123456789abcdef")
folder.mkdir(parents=True, exist_ok=True)
found = newest_complete(folder)
print("goes on from", found.name if found else "the start", flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
if found is None:
    (folder / "checkpoint-3").mkdir()
    (folder / "checkpoint-3" / "weights").write_text("w")
    seal(folder / "checkpoint-3")
    time.sleep(600)
pathlib.Path("model").write_text("trained\\n")
"""


@pytest.fixture(scope="module", autouse=True)
def _secret(namespace):
    kept = {name: base64.b64encode(text.encode()).decode() for name, text in KEYS.items()}
    client.CoreV1Api(cluster.admin()).create_namespaced_secret(namespace, {"metadata": {"name": SECRET}, "data": kept})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name, text in KEYS.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("PYTHONPATH", str(cluster.REPOSITORY))
    folder = tmp_path / "root; $(touch pwned)"
    (folder / "infra" / "kubernetes").mkdir(parents=True)
    sh(folder, "git", "init", "--quiet")
    dvc(folder, "init", "--quiet")
    template = yaml.safe_load(cluster.TEMPLATE.read_text())
    pod = template["spec"]["template"]["spec"]
    pod["hostNetwork"] = True  # the server is on this machine's loopback
    pod["containers"][0]["env"] = [
        {"name": "PYTHONPATH", "value": str(cluster.REPOSITORY)}
    ]  # stands for an image with the package
    files = {
        "infra/kubernetes/job.yaml": yaml.safe_dump(template),
        "dvc.yaml": DVC_YAML,
        "params.yaml": "odd: \"; $(touch pwned) 'q' $$(x)\"\n",
        "seed": "s\n",
        "train.py": TRAIN,
        ".gitignore": "/.posttrain/\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def settings(namespace, url):
    mounts = [
        {"path": one.path, "source": dict(one.source), "is_read_only": one.is_read_only} for one in cluster.mounts()
    ]
    target = {
        "type": "kubernetes",
        "image": cluster.settings(namespace, Path()).image,
        "namespace": namespace,
        "user": 0,
        "mounts": mounts,
        "secret": SECRET,
        "grace_s": 40,
        "storage": {"type": "s3", "url": f"s3://{BUCKET}/lab", "endpoint_url": url, "ship_every_s": 0.5},
        "python": sys.executable,
    }
    small = {"default": {"memory_gb": 1, "shm_gb": 0.1, "time_limit_min": 10}}
    return DispatchSettings.model_validate({"target": "lab", "targets": {"lab": target}, "resources": small})


def run(root, name, chosen, tell):
    with closing(StageExecutor(root, settings=chosen)) as runs:
        return runs.run({node.name: node for node in read_graph(root)}[name], tell)


def manifests(namespace):
    api = cluster.admin()
    found = [
        client.BatchV1Api(api).list_namespaced_job(namespace),
        client.CoreV1Api(api).list_namespaced_pod(namespace),
    ]
    return json.dumps([api.sanitize_for_serialization(one) for one in found])


def phases(core, namespace):
    return {one.metadata.name: one.status.phase for one in core.list_namespaced_pod(namespace).items}


def test_a_pod_that_sees_nothing_of_the_tree_runs_its_stages_and_their_results_land(namespace, server, root, tmp_path):
    assert not [mount for mount in cluster.mounts() if tmp_path.is_relative_to(mount.path)]
    told, chosen = [], settings(namespace, server.url)
    outcome = run(root, "prepare", chosen, told.append)
    assert outcome.state == "completed", outcome
    assert "made in /posttrain-job/tree" in told
    assert (root / "data" / "made").read_text() == "s\n"

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, root, "train", chosen, told.append)
        end = time.monotonic() + 120
        while not any(name.endswith(f"{CHECKPOINT}3/{MARKER}") for name in server.names("lab/jobs")):
            assert time.monotonic() < end, told
            assert not running.done(), (running.result(), told)
            time.sleep(0.2)
        assert not planted(tmp_path)
        text = manifests(namespace)
        core = client.CoreV1Api(cluster.admin())
        while len(alive := [name for name, phase in phases(core, namespace).items() if phase == "Running"]) != 1:
            # The kubelet may tell the API of a pod's start after the pod has shipped a checkpoint.
            assert time.monotonic() < end, (phases(core, namespace), told)
            time.sleep(0.2)
        core.delete_namespaced_pod(alive[0], namespace)
        outcome = running.result(180)
    assert (outcome.state, outcome.num_preempted) == ("completed", 1), (outcome, told)
    assert [line for line in told if line.startswith("goes on from")] == [
        "goes on from the start",
        "goes on from checkpoint-3",
    ]
    assert (root / "model").read_text() == (root / "reports" / "copy").read_text() == "trained\ns\n"
    assert "up to date" in dvc(root, "status")
    assert {name.split("/")[1] for name in server.names("lab/")} == {"dvc"}
    assert not planted(tmp_path)
    assert not [key for key in KEYS.values() if key in text + manifests(namespace)]
    assert not list(tmp_path.rglob("pwned"))


def test_a_pods_runs_of_weights_and_biases_come_home_as_of_the_pipelines_group(namespace, server, root, tmp_path):
    template = Path("infra/kubernetes/job.yaml")
    worktree = make_experiment(tmp_path / "flow", {str(template): (root / template).read_text()})
    check_pipeline(worktree, run_pipeline(worktree, settings(namespace, server.url)))


def test_a_job_that_shares_no_disk_may_write_into_its_folder_also_as_a_plain_user(namespace, tmp_path):
    chosen = replace(cluster.settings(namespace, tmp_path), mounts=(), user=1000, is_disk_shared=False)
    pool = KubernetesBackend(chosen, cluster.submitter(namespace))
    command = ("/bin/sh", "-c", "mkdir tree && echo $(id -u) in $(pwd)")
    pool.submit(JobSpec("plain-user", command, tmp_path, tmp_path / "log", Resources(memory_gb=0.1, shm_gb=0.1)))
    end = time.monotonic() + 120
    while not (status := pool.status("plain-user")).is_over:
        assert time.monotonic() < end, status
        time.sleep(0.2)
    assert (status.exit_code, (tmp_path / "log").read_text()) == (0, "1000 in /posttrain-job\n")
