"""The flow's contract on the cluster that KUBECONFIG names (`make test NEEDS=k8s`), and a training
whose pod is deleted."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from kubernetes import client

from posttrain.dispatch.settings import DispatchSettings
from tests.real import cluster
from tests.real.flow_contract import FlowContract
from tests.real.preempted import LAUNCH, check_preempted_training, kill_second_node, launch_here
from tests.smoke.conftest import dvc, make_copy  # noqa: F401  # fixtures

pytest_plugins = ["tests.real.kubernetes_fixtures"]
pytestmark = pytest.mark.needs_k8s


def on_kubernetes(namespace: str, *writable: Path, memory_gb: float = 0.5, **reserved: object) -> DispatchSettings:
    """Root: the folders of a test are its own alone."""
    mounts = [
        {"path": one.path, "source": one.source, "is_read_only": one.is_read_only} for one in cluster.mounts(*writable)
    ]
    image = os.environ.get("KUBERNETES_TEST_IMAGE", "localhost/busybox:1")
    target = {
        "type": "kubernetes",
        "namespace": namespace,
        "image": image,
        "user": 0,
        "mounts": mounts,
        "python": sys.executable,
    }
    resources = {"default": {"gpus": 1, "memory_gb": memory_gb, "shm_gb": 0.1, **reserved}}
    return DispatchSettings.model_validate(
        {"target": "kubernetes", "targets": {"kubernetes": target}, "resources": resources}
    )


class TestKubernetes(FlowContract):
    @pytest.fixture
    def settings(self, namespace, tmp_path):
        return on_kubernetes(namespace, tmp_path)

    def furnish(self, root):
        (root / "infra/kubernetes").mkdir(parents=True)
        shutil.copy(cluster.TEMPLATE, root / "infra/kubernetes")


def test_a_training_whose_pod_is_deleted_ends_with_the_same_bytes(namespace, make_copy, dvc):  # noqa: F811
    core = client.CoreV1Api(cluster.admin())

    def preempt(job_id: str) -> None:
        [pod] = core.list_namespaced_pod(namespace, label_selector=f"job-name={job_id}").items
        core.delete_namespaced_pod(pod.metadata.name, namespace)

    check_preempted_training(make_copy, dvc, lambda root: on_kubernetes(namespace, root, memory_gb=2), preempt)


def test_a_training_on_two_nodes_of_which_one_dies_ends_with_the_bytes_of_two_processes_on_one(
    namespace,
    make_copy,  # noqa: F811
    dvc,  # noqa: F811
    monkeypatch,
):
    launch_here(monkeypatch)
    settings = lambda root: on_kubernetes(namespace, root, memory_gb=2, nodes=2, launch=LAUNCH)  # noqa: E731
    check_preempted_training(make_copy, dvc, settings, kill_second_node, max_steps=100)
