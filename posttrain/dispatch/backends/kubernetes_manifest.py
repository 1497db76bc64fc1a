"""Builds the manifest of a job: the cluster's template with the spec filled in as data, never as
text that is parsed again.

The command is started by a shell (`GUARD`) that first makes a folder in the job's folder, and
refuses where that is there already: Kubernetes replaces a pod that was deleted, old versions while
it still writes its checkpoint, and two must never run in one folder. The shell gets the command as
arguments and parses none of it.

On several nodes the job has as many pods, and each makes the first folder that is not there yet:
its number is that of the node. The pods find each other over the disk that they share, so the job
needs no service, and no index of Kubernetes'.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from posttrain.dispatch.backend import NODE, JobSpec
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.plain_yaml import read_yaml

GPU = "nvidia.com/gpu"
FOLDER, LOG = "posttrain/folder", "posttrain/log"  # annotations, read by other processes of the submitter
MAIN = "main"
OWN_FOLDER, OWN_VOLUME = "/posttrain-job", "work"  # of a job that shares no disk
REFUSAL = "a second pod of this job"
_REFUSE = (
    'test -d "$0" || { echo "$0 cannot be made: is the folder mounted, '
    'and may this user write to it?" >&2; exit 78; }; '
    f"echo '{REFUSAL}' >/dev/termination-log; exit 75"
)
GUARD = f'mkdir "$0" && exec "$@"; {_REFUSE}'
_POD = "POSTTRAIN_POD"  # in a pod's environment: its name


@pydantic.dataclasses.dataclass(frozen=True, config={"extra": "forbid", "allow_inf_nan": False})
class Mount:
    """A folder that every job sees at `path`. `source` is as Kubernetes has it:
    `{"persistentVolumeClaim": {"claimName": "work"}}`."""

    path: str
    source: dict[str, pydantic.JsonValue]
    is_read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Settings of a cluster beside the job template.

    `user` runs the containers, 0 is root. `queue` is a Kueue LocalQueue, `secret` a Secret whose
    keys become the job's environment: they are never in a manifest. `grace_s` is the time for a
    checkpoint, `keep_s` how long an ended job can still be asked for. `patience_s` bounds the wait
    for an image, and for a node that could ever hold the job. Where `is_disk_shared`, a job works
    in the submitter's folder, which a mount must show; else in an empty one of its own.
    """

    template: Path
    image: str
    namespace: str = "default"
    mounts: tuple[Mount, ...] = ()
    user: int = 1000
    queue: str | None = None
    secret: str | None = None
    grace_s: int = 60
    keep_s: int = 7 * 24 * 3600
    patience_s: float = 300.0
    is_disk_shared: bool = True


def read_template(path: Path) -> dict[str, Any]:
    """Raises ConfigurationError where it is not a Job with a container `main`."""
    try:
        template = read_yaml(path)
        found = template["kind"] == "Job" and any(
            one["name"] == MAIN for one in template["spec"]["template"]["spec"]["containers"]
        )
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} cannot be used as a template of jobs ({error!r}); infra/kubernetes/job.yaml is one"
        ) from error
    if not found:
        raise ConfigurationError(
            f"{path} is not a Job with a container {MAIN!r}: the command has no place in it. "
            "infra/kubernetes/job.yaml has one"
        )
    job: dict[str, Any] = template
    return job


def guard_of_nodes(number: int) -> str:
    """The guard of each of so many pods; that of node 0 leaves its name in the folder that it
    made."""
    claim = f'mkdir "$0/$node" 2>/dev/null && {{ echo "${_POD}" >"$0/$node/pod"; {NODE}=$node exec "$@"; }}'
    return f'mkdir "$0" 2>/dev/null; for node in {" ".join(map(str, range(number)))}; do {claim}; done; {_REFUSE}'


def name_of_first(job: Mapping[str, Any]) -> str:
    """Name of the pod of node 0 of a job on several nodes, empty while none has begun."""
    metadata = job["metadata"]
    try:
        return (Path(metadata["annotations"][FOLDER]) / f".{metadata['name']}.started/0/pod").read_text().strip()
    except OSError:
        return ""


def manifest(spec: JobSpec, settings: KubernetesSettings, template: Mapping[str, Any]) -> dict[str, Any]:
    job = copy.deepcopy(dict(template))
    folder, resources = str(spec.folder.resolve()), spec.resources
    metadata = job.setdefault("metadata", {})
    metadata |= {"name": spec.name, "namespace": settings.namespace}
    metadata["annotations"] = metadata.get("annotations", {}) | {FOLDER: folder, LOG: str(spec.log.resolve())}
    if settings.queue:
        metadata["labels"] = metadata.get("labels", {}) | {"kueue.x-k8s.io/queue-name": settings.queue}
    job["spec"] |= {"completions": resources.nodes, "parallelism": resources.nodes}
    job["spec"]["ttlSecondsAfterFinished"] = settings.keep_s
    pod = job["spec"]["template"]["spec"]
    pod |= {"terminationGracePeriodSeconds": settings.grace_s, "activeDeadlineSeconds": resources.time_limit_s}
    pod["securityContext"] = pod.get("securityContext", {}) | _identity(settings.user)
    container = next(one for one in pod["containers"] if one["name"] == MAIN)
    asked = container.get("resources", {})
    works_in = folder if settings.is_disk_shared else OWN_FOLDER
    container |= {
        "image": settings.image,
        "workingDir": works_in,
        "command": ["/bin/sh", "-c", _verbatim(GUARD if resources.nodes == 1 else guard_of_nodes(resources.nodes))],
        "args": [_verbatim(word) for word in (f"{works_in}/.{spec.name}.started", *spec.command)],
        "env": [
            *container.get("env", []),
            *([{"name": _POD, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}] * (resources.nodes > 1)),
            *({"name": name, "value": _verbatim(value)} for name, value in sorted(spec.environment.items())),
        ],
        "resources": {  # the template may bound its disk (ephemeral-storage)
            "requests": asked.get("requests", {})
            | {"cpu": str(resources.cpus), "memory": _mebibytes(resources.memory_gb)},
            "limits": asked.get("limits", {})
            | {"memory": _mebibytes(resources.memory_gb)}
            | ({GPU: str(resources.gpus)} if resources.gpus else {}),
        },
    }
    if settings.secret:
        container["envFrom"] = [*container.get("envFrom", []), {"secretRef": {"name": settings.secret}}]
    for volume in pod.get("volumes", []):
        if volume["name"] == "shm":
            volume["emptyDir"]["sizeLimit"] = _mebibytes(resources.shm_gb)
    if not settings.is_disk_shared:
        # The template may have a volume of this name, larger than the node's own disk.
        if all(volume["name"] != OWN_VOLUME for volume in pod.get("volumes", [])):
            pod.setdefault("volumes", []).append({"name": OWN_VOLUME, "emptyDir": {}})
        container.setdefault("volumeMounts", []).append({"name": OWN_VOLUME, "mountPath": OWN_FOLDER})
    for number, mount in enumerate(settings.mounts):
        volume = {"name": f"mount-{number}"}
        pod.setdefault("volumes", []).append(volume | json.loads(json.dumps(mount.source)))
        container.setdefault("volumeMounts", []).append(
            volume | {"mountPath": mount.path} | ({"readOnly": True} if mount.is_read_only else {})
        )
    return job


def _identity(user: int) -> dict[str, Any]:
    if not user:
        return {"runAsUser": 0, "runAsNonRoot": False}
    return {"runAsUser": user, "runAsGroup": user, "fsGroup": user, "runAsNonRoot": True}


def _verbatim(text: str) -> str:
    """Kubernetes puts the environment's X in place of `$(X)`, and `$` in place of `$$`."""
    return text.replace("$", "$$")


def _mebibytes(size_gb: float) -> str:
    return f"{round(size_gb * 1024)}Mi"
