"""Backend on Kubernetes: a batch/v1 Job of its own name for each job, with one pod for each of its
nodes and no retry.

The API server keeps all state, so any process finds any job. A job that the backend ends
(cancelled, preempted, no image) is kept with its end written on it, and not deleted: its name stays
taken, and its end can be read later. Kubernetes removes it after `keep_s`.
"""

import contextlib
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient

from posttrain.dispatch.backend import Cause, JobSpec, JobState, JobStatus
from posttrain.dispatch.backends.kubernetes_api import Absent, Api, Taken
from posttrain.dispatch.backends.kubernetes_manifest import (
    FOLDER,
    LOG,
    MAIN,
    KubernetesSettings,
    manifest,
    name_of_first,
    read_template,
)
from posttrain.dispatch.backends.kubernetes_status import END, FIRST_POD, STARTING, Json, may_run, read, to_text
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.state import private

LOG_EVERY_S = 10.0  # while the job runs; the rest comes when it ends
NODES_EVERY_S = 5.0
# With 0 the API server forgets the pod at once, and nobody knows any more when its processes are
# dead.
_KILL_GRACE_S = 1
# a pod deleted while its container starts is forgotten by kubelets before 1.22, and its processes
# live on for their whole grace
_STARTING_S = 1.5
_KILLING_S = 3.5  # a node takes two seconds and one to say so; one that does not answer is not waited for
_OVERLAP = 4096
_NO_LOG = b"unable to retrieve container logs for "  # what a node says, with 200, once it has thrown the container away


class KubernetesBackend:
    """Jobs in one namespace. Without a `client` the cluster is that of KUBECONFIG, or the one that
    this process runs in."""

    def __init__(self, settings: KubernetesSettings, client: ApiClient | None = None) -> None:
        self._settings, self._template = settings, read_template(settings.template)
        self._api = Api(client)
        self._jobs = ("apis", "batch", "v1", "namespaces", settings.namespace, "jobs")
        self._pods = ("api", "v1", "namespaces", settings.namespace, "pods")
        self._logged_at: dict[str, float] = {}
        self._known_nodes: list[Json] | None = None
        self._nodes_at = -NODES_EVERY_S

    def submit(self, spec: JobSpec) -> str:
        try:
            self._api.create(self._jobs, manifest(spec, self._settings, self._template))
        except Taken:
            folder = self._job(spec.name)["metadata"].get("annotations", {}).get(FOLDER)
            if folder != str(spec.folder.resolve()):
                raise ConfigurationError(
                    f"a job {spec.name} is in the namespace {self._settings.namespace} already and works in "
                    f"{folder}: it is another submitter's, and its result would not come here. "
                    "Use a namespace of your own"
                ) from None
        except Absent as error:
            raise ConfigurationError(
                f"there is no namespace {self._settings.namespace} to run {spec.name} in: {error}"
            ) from error
        return spec.name

    def status(self, job_id: str) -> JobStatus:
        try:
            job = self._job(job_id)
        except Absent:
            return JobStatus(JobState.GONE)
        why_no_pod, pods = functools.partial(self._why_no_pod, job), self._pods_of(job)
        is_first_known = self._name_first(job, pods)
        reading = read(job, pods, self._nodes, why_no_pod, now=self._api.now, patience_s=self._settings.patience_s)
        with contextlib.suppress(Absent):
            if reading.pod is not None:
                annotations = job["metadata"].get("annotations", {})
                is_ending = reading.status.is_over or reading.end is not None or END in annotations
                self._save_log(job, reading.pod, is_urgent=is_ending)
                if FIRST_POD not in annotations and is_first_known:
                    self._annotate(job_id, FIRST_POD, reading.pod["metadata"]["uid"])
            if reading.end is not None:
                self._end(job, reading.end)
        return reading.status

    def cancel(self, job_id: str) -> None:
        deadline = time.monotonic() + _STARTING_S
        while (
            (status := self.status(job_id)).state is JobState.WAITING
            and status.note in ("", STARTING)
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        if status.is_over:
            return
        with contextlib.suppress(Absent):
            job = self._job(job_id)
            self._kill_pods(job)  # first, or the job's controller would give them their whole grace
            self._end(job, JobStatus(JobState.ENDED, None, Cause.CANCELLED, "cancelled"))
            self._kill_pods(job)
        deadline = time.monotonic() + _KILLING_S
        while not self.status(job_id).is_over and time.monotonic() < deadline:
            time.sleep(0.2)

    def _end(self, job: Json, end: JobStatus) -> None:
        """Write the end on the job, so that no pod starts any more and those that live are
        ended."""
        change = {
            "metadata": {"annotations": {END: to_text(end)}},
            "spec": {"parallelism": 0, "activeDeadlineSeconds": 1},
        }
        self._api.patch((*self._jobs, job["metadata"]["name"]), change)
        for pod in self._pods_of(job):
            # A pending pod would keep its place on a node for minutes more.
            if pod["status"].get("phase") == "Pending" and not may_run(pod):
                self._delete(pod, grace_s=0)

    def _name_first(self, job: Json, pods: Sequence[Json]) -> bool:
        """True where it is known which pod counts. Of several it is the one that has claimed node
        0, which is written on the job."""
        annotations = job["metadata"].setdefault("annotations", {})
        if job["spec"].get("completions", 1) == 1 or FIRST_POD in annotations:
            return True
        name = name_of_first(job)
        uid = next((pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"] == name), None)
        if uid is not None:
            self._annotate(job["metadata"]["name"], FIRST_POD, uid)
            annotations[FIRST_POD] = uid
        return uid is not None

    def _annotate(self, job_id: str, key: str, value: str) -> None:
        self._api.patch((*self._jobs, job_id), {"metadata": {"annotations": {key: value}}})

    def _kill_pods(self, job: Json) -> None:
        for pod in self._pods_of(job):
            if pod["status"].get("phase") not in ("Succeeded", "Failed"):
                self._delete(pod, grace_s=_KILL_GRACE_S)

    def _delete(self, pod: Json, *, grace_s: int) -> None:
        with contextlib.suppress(Absent):
            self._api.delete((*self._pods, pod["metadata"]["name"]), grace_s=grace_s)

    def _job(self, name: str) -> dict[str, Any]:
        return self._api.get((*self._jobs, name))

    def _pods_of(self, job: Json) -> list[Json]:
        labels = job["spec"]["selector"]["matchLabels"]
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        pods: list[Json] = self._api.get(self._pods, labelSelector=selector)["items"]
        return pods

    def _nodes(self) -> list[Json] | None:
        """At most a few seconds old: every job that waits for one asks, and a large cluster has
        megabytes of them."""
        if time.monotonic() - self._nodes_at > NODES_EVERY_S:
            try:
                self._known_nodes = self._api.get(("api", "v1", "nodes"))["items"]
            except ConfigurationError:  # we may not see them
                self._known_nodes = None
            self._nodes_at = time.monotonic()
        return self._known_nodes

    def _why_no_pod(self, job: Json) -> str:
        """The last refusal of its controller: a quota, a limit range, pod security, an admission
        webhook."""
        selector = f"involvedObject.uid={job['metadata']['uid']},reason=FailedCreate"
        try:
            events = self._api.get((*self._pods[:-1], "events"), fieldSelector=selector)["items"]
        except ConfigurationError:  # we may not see them
            return ""
        return str(max(events, key=lambda event: event.get("lastTimestamp") or "")["message"]) if events else ""

    def _save_log(self, job: Json, pod: Json, *, is_urgent: bool) -> None:
        """Saves the pod's log. One that cannot be read now is left out: a pod that never started
        has none, one on a lost node has it there."""
        name = job["metadata"]["name"]
        target = job["metadata"].get("annotations", {}).get(LOG)
        if target is None or (
            not is_urgent and time.monotonic() - self._logged_at.get(name, -LOG_EVERY_S) < LOG_EVERY_S
        ):
            return
        self._logged_at[name] = time.monotonic()
        try:
            log_now = self._api.text((*self._pods, pod["metadata"]["name"], "log"), container=MAIN)
        except (Absent, ConfigurationError, Interrupted):
            return
        if log_now.startswith(_NO_LOG):
            return
        log = Path(target)
        log.parent.mkdir(parents=True, exist_ok=True)
        whole = joined(log.read_bytes() if log.exists() else b"", log_now)
        with open(log, "wb", opener=private) as file:
            file.write(whole)


def joined(before: bytes, now: bytes) -> bytes:
    """The saved log joined with the node's, which drops the beginning of a long one: `ab` and `bc`
    give `abc`."""
    if before.startswith(now):
        return before
    place = before.find(now[: min(len(before), _OVERLAP)])
    return before[:place] + now if place >= 0 else before + now
