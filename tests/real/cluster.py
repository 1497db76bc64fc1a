"""The cluster that KUBECONFIG names, for tests: a namespace of their own, and pods that see this
machine's Python."""

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import yaml
from kubernetes import client, config, utils

from posttrain.dispatch.backends.kubernetes_manifest import KubernetesSettings, Mount

REPOSITORY = Path(__file__).resolve().parents[2]
TEMPLATE = REPOSITORY / "infra" / "kubernetes" / "job.yaml"
SUBMITTER = "posttrain-submitter"


def admin() -> client.ApiClient:
    configuration = client.Configuration()
    config.load_kube_config(client_configuration=configuration)
    return client.ApiClient(configuration)


def submitter(namespace: str, host: str | None = None) -> client.ApiClient:
    """With the rights of infra/kubernetes/rbac.yaml and no others."""
    api = admin()
    api.configuration.host = host or api.configuration.host
    api.set_default_header("Impersonate-User", f"system:serviceaccount:{namespace}:{SUBMITTER}")
    return api


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    api, name = admin(), f"posttrain-{uuid.uuid4().hex[:8]}"
    core, rights = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api)
    core.create_namespace({"metadata": {"name": name}})
    try:
        for thing in yaml.safe_load_all((REPOSITORY / "infra" / "kubernetes" / "rbac.yaml").read_text()):
            if thing["kind"].startswith("Cluster"):
                thing["metadata"]["name"] = name  # its own, to be deleted with the namespace
            if thing["kind"] == "ClusterRoleBinding":
                thing["roleRef"]["name"], thing["subjects"][0]["namespace"] = name, name
            utils.create_from_dict(api, thing, namespace=name)
        yield name
    finally:
        core.delete_namespace(name)
        rights.delete_cluster_role_binding(name)
        rights.delete_cluster_role(name)


def mounts(*writable: Path) -> tuple[Mount, ...]:
    """This machine's Python, libraries and repository under their own paths, to be read, and
    folders to be written.

    A node that is a container has this machine's `/` at KUBERNETES_TEST_ROOT.
    """
    root = os.environ.get("KUBERNETES_TEST_ROOT", "")
    wanted = {
        Path(path).resolve() for path in ("/usr", "/etc", sys.base_prefix, REPOSITORY, *sys.path) if Path(path).is_dir()
    } | {Path(sys.prefix)}
    roots = [path for path in wanted if not any(other in path.parents for other in wanted)]
    readable = [*sorted(map(str, roots)), "/bin", "/lib", "/lib64"]
    return (
        *(Mount(path, {"hostPath": {"path": root + path}}, is_read_only=True) for path in readable),
        *(Mount(str(path), {"hostPath": {"path": f"{root}{path}"}}) for path in writable),
    )


def settings(namespace: str, workspace: Path) -> KubernetesSettings:
    """Small patience, and root: the workspace of a test is its own alone."""
    where = {
        "namespace": namespace,
        "mounts": mounts(workspace),
        "image": os.environ.get("KUBERNETES_TEST_IMAGE", "localhost/busybox:1"),
    }
    return KubernetesSettings(template=TEMPLATE, user=0, grace_s=3, patience_s=5.0, **where)


def is_ready(core: client.CoreV1Api, node: str) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in core.read_node(node).status.conditions)


def wait_ready(core: client.CoreV1Api, node: str) -> None:
    """And take the taint of a lost node away."""
    while not is_ready(core, node):
        time.sleep(0.5)
    core.patch_node(node, {"spec": {"taints": None}})
