"""Derives a job's status from what Kubernetes reports of it and its pods. Pure functions: the same
reports give the same status.

Only the first pod of a job counts; on several nodes it is that of node 0, and the job is over once
no other lives either. A pod that is being deleted, or gone, ends the job as preempted:
its replacement by Kubernetes is not wanted. An end that the backend decided (cancelled, no image)
is written on the job as the annotation `END`, and holds as soon as no pod lives.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from posttrain.dispatch.backend import Cause, JobState, JobStatus
from posttrain.dispatch.backends.kubernetes_manifest import GPU, MAIN, REFUSAL
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted

END, FIRST_POD = "posttrain/end", "posttrain/pod"  # annotations
STARTING = "ContainerCreating"  # Kubernetes' word for a pod that has its place
STUCK_S = 30.0  # a pod that should be gone for so long, on a node that does not answer, is taken for dead
ENDING_S = 15.0  # for the pods of the other nodes, once the first has ended
_NO_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "ImageInspectError",
)
_WRONG = ("CreateContainerConfigError", "CreateContainerError")
# Kubelet's messages for a pod over a limit of its own (pkg/kubelet/eviction/helpers.go). Those for
# pressure on the node begin with `The node`, and may go on with what the pod used.
_OVER_OWN_LIMIT = re.compile(
    r"Usage of EmptyDir volume .* exceeds the limit"
    r"|Container \S+ exceeded its local ephemeral storage limit"
    r"|Pod ephemeral local storage usage exceeds the total limit of containers",
    re.IGNORECASE,
)
_SHM_FULL = 'Usage of EmptyDir volume "shm"'  # in memory
_FORBIDDEN = ("SysctlForbidden", "AppArmor", "PodOSNotSupported")  # by kubelet, for what the template asks
# Exit codes that a process chooses itself after it was asked to end: they hold, whatever ended it.
_OWN_CODES = (0, ConfigurationError.code, DataError.code, Interrupted.code)

Json = Mapping[str, Any]
Nodes = Callable[[], Sequence[Json] | None]
WhyNoPod = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Reading:
    """A job's status and what to do about it. `pod` is the one whose log is the job's. `end` is the
    end that the backend has to write on the job and bring about, None where there is none."""

    status: JobStatus
    pod: Json | None = None
    end: JobStatus | None = None


def read(
    job: Json, pods: Sequence[Json], nodes: Nodes, why_no_pod: WhyNoPod, *, now: datetime, patience_s: float
) -> Reading:
    """The reading of a job and its pods. `nodes` is called only where it matters; it returns None
    where our account may not list nodes. `why_no_pod` returns Kubernetes' reason for a job without
    a pod."""
    pod = _first(job, pods)
    is_first_known = pod is not None or FIRST_POD in job["metadata"].get("annotations", {})
    is_first_known &= job["spec"].get("completions", 1) == 1
    ours = [pod] if is_first_known else pods  # a replacement of the first refuses to run (GUARD)
    living = [one for one in ours if one is not None and may_run(one) and not _is_stuck(one, nodes, now)]
    written = job["metadata"].get("annotations", {}).get(END)
    if written:
        end = _from_text(written)
        if end.cause is not Cause.CANCELLED and pod is not None and _is_over(pod):
            own = _end_of(pod)  # it may have finished while it was being ended
            end = own if own.exit_code == 0 else end
        return Reading(_ending(end, living), pod)
    if pod is None:
        return _without_pod(job, living, why_no_pod)
    if _is_over(pod):
        end = _end_of(pod)
        if living:  # on other nodes: they end by themselves, or are ended
            note = "the pods of its other nodes are ending"
            return Reading(JobStatus(JobState.RUNNING, note=note), pod, end if _ended_s(pod, now) > ENDING_S else None)
        is_replaced = end.cause in (Cause.PREEMPTED, Cause.NODE_LOST) and not _condition(job, "Failed")
        return Reading(end, pod, end if is_replaced else None)
    if "deletionTimestamp" in pod["metadata"]:
        is_aborted = _is_ready(pod["spec"].get("nodeName", ""), nodes) is False
        deleted = _ended(Cause.PREEMPTED, "its pod was deleted")
        end = _ended(Cause.NODE_LOST, f"{_node(pod)} does not answer") if is_aborted else deleted
        return Reading(_ending(end, living), pod, end)
    status, decided = _of_living(pod, nodes, now, patience_s)
    return Reading(status, pod, decided)


def to_text(end: JobStatus) -> str:
    return json.dumps({"exit_code": end.exit_code, "cause": end.cause, "note": end.note})


def _from_text(text: str) -> JobStatus:
    end = json.loads(text)
    return JobStatus(JobState.ENDED, end["exit_code"], Cause(end["cause"]), end["note"])


def _ended(cause: Cause, note: str = "", exit_code: int | None = None) -> JobStatus:
    return JobStatus(JobState.ENDED, exit_code, cause, note)


def _ending(end: JobStatus, living: Sequence[Json]) -> JobStatus:
    return JobStatus(JobState.RUNNING, note=f"is being ended: {end.note or end.cause}") if living else end


def _without_pod(job: Json, living: Sequence[Json], why_no_pod: WhyNoPod) -> Reading:
    had_pod = job["metadata"].get("annotations", {}).get(FIRST_POD)
    if had_pod and not _condition(job, "Failed") and not _condition(job, "Complete"):
        end = _ended(Cause.PREEMPTED, "its pod was deleted")
        return Reading(_ending(end, living), None, end)
    if _condition(job, "Complete"):
        return Reading(_ended(Cause.EXITED, exit_code=0))
    if failed := _condition(job, "Failed"):
        is_late = failed.get("reason") == "DeadlineExceeded"
        note = failed.get("message", "") if is_late else "its pod was deleted"
        return Reading(_ending(_ended(Cause.TIME_LIMIT if is_late else Cause.PREEMPTED, note), living))
    queue = job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
    if queue and job["spec"].get("suspend"):
        return Reading(JobStatus(JobState.WAITING, note=f"waits in the queue {queue}"))
    message = why_no_pod()
    return Reading(JobStatus(JobState.WAITING, note=f"Kubernetes makes no pod for it: {message}" if message else ""))


def _of_living(pod: Json, nodes: Nodes, now: datetime, patience_s: float) -> tuple[JobStatus, JobStatus | None]:
    """Status of a living job, and the end that the backend is to make of it."""
    state = _main(pod).get("state", {})
    if "running" in state or "terminated" in state:
        is_silent = _condition(pod, "Ready") is None and _is_ready(pod["spec"].get("nodeName", ""), nodes) is False
        return JobStatus(JobState.RUNNING, note=f"{_node(pod)} does not answer" if is_silent else ""), None
    scheduled = _condition(pod, "PodScheduled", "False")
    if scheduled:
        message = scheduled.get("message", "")
        waited_s = (now - _time(pod["metadata"]["creationTimestamp"])).total_seconds()
        if waited_s > patience_s and _fits_nowhere(pod, nodes()):
            end = _ended(Cause.UNSCHEDULABLE, f"{_wanted(pod)} is more than any node has: {message}")
            return end, end
        return JobStatus(JobState.WAITING, note=message), None
    waiting = state.get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    note = f"{reason}: {message}" if message else reason
    waited_s = (now - _time(pod["status"]["startTime"])).total_seconds() if "startTime" in pod["status"] else 0.0
    if reason in _NO_IMAGE and (waited_s > patience_s or reason == "InvalidImageName"):
        end = _ended(Cause.NO_IMAGE, f"{_container(pod)['image']}: {note}")
        return end, end
    if reason in _WRONG and waited_s > patience_s:
        end = _ended(Cause.EXITED, note, ConfigurationError.code)
        return end, end
    return JobStatus(JobState.WAITING, note=note), None


def _end_of(pod: Json) -> JobStatus:
    status = pod["status"]
    reason, message = status.get("reason", ""), status.get("message", "")
    note = f"{reason}: {message}" if message else reason
    if reason == "DeadlineExceeded":
        return _ended(Cause.TIME_LIMIT, message or reason)
    if reason == "NodeLost":
        return _ended(Cause.NODE_LOST, note)
    if reason == "Evicted" and _OVER_OWN_LIMIT.match(message):  # it would be again, on any node
        return _ended(Cause.OUT_OF_MEMORY if message.startswith(_SHM_FULL) else Cause.OUT_OF_DISK, note)
    if reason in _FORBIDDEN:
        return _ended(Cause.EXITED, note, ConfigurationError.code)
    terminated = _main(pod).get("state", {}).get("terminated")
    if reason or terminated is None:
        return _ended(Cause.PREEMPTED, note or "its pod was deleted")
    code, why, message = terminated["exitCode"], terminated.get("reason", ""), terminated.get("message", "").strip()
    if why in ("Unknown", "ContainerStatusUnknown"):
        return _ended(Cause.NODE_LOST, f"nobody saw how it ended on {_node(pod)}")
    if message.startswith(REFUSAL):
        return _ended(Cause.PREEMPTED, "its first pod was deleted")
    if why == "OOMKilled":
        limit = _container(pod)["resources"]["limits"]["memory"]
        return _ended(Cause.OUT_OF_MEMORY, f"it used more than {limit}", code)
    disruption = _condition(pod, "DisruptionTarget")
    if (disruption or "deletionTimestamp" in pod["metadata"]) and code not in _OWN_CODES:
        return _ended(Cause.PREEMPTED, (disruption or {}).get("message", "its pod was deleted"), code)
    return _ended(Cause.EXITED, message, code)


def _ended_s(pod: Json, now: datetime) -> float:
    """Seconds since the command of a pod ended, endless where nobody saw it."""
    finished = _main(pod).get("state", {}).get("terminated", {}).get("finishedAt")
    return (now - _time(finished)).total_seconds() if finished else float("inf")


def _first(job: Json, pods: Sequence[Json]) -> Json | None:
    known = job["metadata"].get("annotations", {}).get(FIRST_POD)
    wanted = [one for one in pods if known in (None, one["metadata"]["uid"])]
    return min(wanted, key=lambda one: one["metadata"]["creationTimestamp"], default=None)


def _is_over(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def may_run(pod: Json) -> bool:
    """True where the pod's command runs, or may yet start."""
    reason = _main(pod).get("state", {}).get("waiting", {}).get("reason")
    return not _is_over(pod) and bool(pod["spec"].get("nodeName")) and reason not in (*_NO_IMAGE, *_WRONG)


def _is_stuck(pod: Json, nodes: Nodes, now: datetime) -> bool:
    """True where the pod should be gone by now, and its node does not answer."""
    due = pod["metadata"].get("deletionTimestamp")
    is_overdue = bool(due) and (now - _time(due)).total_seconds() > STUCK_S
    return is_overdue and _is_ready(pod["spec"].get("nodeName", ""), nodes) is False


def _is_ready(name: str, nodes: Nodes) -> bool | None:
    """None where we may not know."""
    known = nodes()
    if known is None:
        return None
    return any(node["metadata"]["name"] == name and bool(_condition(node, "Ready")) for node in known)


def _fits_nowhere(pod: Json, nodes: Sequence[Json] | None) -> bool:
    """True where even an empty node could not hold the pod. False without nodes: a cluster may
    start its first on demand."""
    wanted = _container(pod)["resources"]
    need = {**wanted.get("requests", {}), **wanted.get("limits", {})}
    if not nodes:
        return False
    return not any(
        all(parse_quantity(node["status"]["allocatable"].get(name, "0")) >= parse_quantity(need[name]) for name in need)
        for node in nodes
    )


def _wanted(pod: Json) -> str:
    wanted = _container(pod)["resources"]
    gpus = wanted.get("limits", {}).get(GPU)
    asked = f"{wanted['requests']['cpu']} CPUs and {wanted['requests']['memory']}"
    return f"{asked}{f' and {gpus} GPUs' if gpus else ''} on one node"


def _condition(thing: Json, kind: str, status: str = "True") -> Json | None:
    conditions = thing.get("status", {}).get("conditions") or []
    return next((one for one in conditions if (one["type"], one["status"]) == (kind, status)), None)


def _container(pod: Json) -> Json:
    return next(one for one in pod["spec"]["containers"] if one["name"] == MAIN)


def _main(pod: Json) -> Json:
    return next((one for one in pod["status"].get("containerStatuses", []) if one["name"] == MAIN), {})


def _node(pod: Json) -> str:
    return f"its node {pod['spec'].get('nodeName', '')}"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
