"""Status read from recorded pods: the ends that a small cluster cannot bring about, and a log of
which the node has forgotten the beginning."""

from datetime import UTC, datetime, timedelta

import pytest

from posttrain.dispatch.backend import Cause, JobState, JobStatus
from posttrain.dispatch.backends.kubernetes import joined
from posttrain.dispatch.backends.kubernetes_status import END, read, to_text
from posttrain.dispatch.retries import next_step
from posttrain.runtime.exits import ConfigurationError

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
JOB = {"metadata": {"name": "j", "annotations": {"posttrain/pod": "u1"}}, "spec": {}, "status": {}}
LIMITS = {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}
READY = {"type": "Ready", "status": "True"}


def pod(*, uid="u1", state=None, deleted_s=None, **status):
    """`deleted_s` seconds ago it should have been gone."""
    metadata = {"uid": uid, "name": uid, "creationTimestamp": "2026-01-01T11:00:00Z"}
    if deleted_s is not None:
        metadata["deletionTimestamp"] = (NOW - timedelta(seconds=deleted_s)).isoformat()
    containers = [{"name": "main", "image": "an/image:1", "resources": LIMITS}]
    statuses = [{"name": "main", "state": state}] if state else []
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n1", "containers": containers},
        "status": {"containerStatuses": statuses, **status},
    }


def terminated(code, reason="Error", **more):
    return {"terminated": {"exitCode": code, "reason": reason, **more}}


def reading(
    *pods,
    job=JOB,
    nodes=({"metadata": {"name": "n1"}, "status": {"conditions": [READY], "allocatable": {}}},),
    refusal="",
):
    return read(job, pods, lambda: nodes, lambda: refusal, now=NOW, patience_s=60)


@pytest.mark.parametrize(
    ("recorded", "cause", "code"),
    [
        (
            pod(phase="Failed", reason="UnexpectedAdmissionError", message="no healthy devices present"),
            Cause.PREEMPTED,
            None,
        ),
        (
            pod(
                phase="Failed", reason="Terminated", message="Pod was terminated in response to imminent node shutdown."
            ),
            Cause.PREEMPTED,
            None,
        ),
        (pod(phase="Failed", reason="NodeLost"), Cause.NODE_LOST, None),
        (pod(phase="Failed", state=terminated(255, "Unknown")), Cause.NODE_LOST, None),
        (pod(phase="Failed", state=terminated(137, "ContainerStatusUnknown")), Cause.NODE_LOST, None),
        (
            pod(phase="Failed", state=terminated(143), conditions=[{"type": "DisruptionTarget", "status": "True"}]),
            Cause.PREEMPTED,
            143,
        ),
        (
            pod(phase="Failed", state=terminated(75), conditions=[{"type": "DisruptionTarget", "status": "True"}]),
            Cause.EXITED,
            75,
        ),
        (pod(phase="Failed", state=terminated(65)), Cause.EXITED, 65),
        (pod(phase="Failed", state=terminated(75, message="a second pod of this job\n")), Cause.PREEMPTED, None),
        (pod(phase="Failed", state=terminated(137, "OOMKilled")), Cause.OUT_OF_MEMORY, 137),
    ],
)
def test_how_it_ended(recorded, cause, code):
    status = reading(recorded).status
    assert (status.state, status.cause, status.exit_code) == (JobState.ENDED, cause, code)


EMPTY_DIR = 'Usage of EmptyDir volume "{}" exceeds the limit "1Gi". '
LARGER = "{} {} was using 60Gi, request is 0, has larger consumption of {}. "


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        # as pkg/kubelet/eviction/helpers.go of Kubernetes has them; once without the last space
        (EMPTY_DIR.format("shm"), Cause.OUT_OF_MEMORY),
        (EMPTY_DIR.format("work"), Cause.OUT_OF_DISK),
        ('Container main exceeded its local ephemeral storage limit "2Gi". ', Cause.OUT_OF_DISK),
        ('Container main exceeded its local ephemeral storage limit "2Gi".', Cause.OUT_OF_DISK),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ", Cause.OUT_OF_DISK),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers {{2 0} {<nil>} 2Gi}",
            Cause.OUT_OF_DISK,
        ),
        ("The node was low on resource: memory. ", Cause.PREEMPTED),
        (
            "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi. "
            + LARGER.format("Container", "main", "ephemeral-storage"),
            Cause.PREEMPTED,
        ),
        ("The node was low on resource: memory. " + LARGER.format("Pod", "u1", "memory"), Cause.PREEMPTED),
        ("The node was low on resource: inodes. ", Cause.PREEMPTED),
        ("The node had condition: [DiskPressure]. ", Cause.PREEMPTED),
        ("Pod The node had condition: [DiskPressure]. ", Cause.PREEMPTED),
    ],
)
def test_a_pod_over_a_limit_of_its_own_is_not_tried_again_and_one_on_a_full_node_is(message, cause):
    status = reading(pod(phase="Failed", reason="Evicted", message=message)).status
    assert (status.cause, status.note) == (cause, f"Evicted: {message}")
    assert next_step(status, attempt=1) == ("again" if cause is Cause.PREEMPTED else "failed")


@pytest.mark.parametrize("reason", ["SysctlForbidden", "AppArmor", "PodOSNotSupported"])
def test_a_pod_that_no_node_of_this_kind_may_run_is_the_templates_fault(reason):
    status = reading(pod(phase="Failed", reason=reason, message="forbidden sysctl")).status
    assert (status.cause, status.exit_code) == (Cause.EXITED, ConfigurationError.code)
    assert next_step(status, attempt=1) == "failed"


def test_a_job_without_a_pod_says_what_kubernetes_has_against_one():
    new = {"metadata": {"name": "j"}, "spec": {}, "status": {}}
    assert reading(job=new).status == JobStatus(JobState.WAITING)
    assert reading(job=new, refusal="exceeded quota").status == JobStatus(
        JobState.WAITING, note="Kubernetes makes no pod for it: exceeded quota"
    )
    suspended = {
        "metadata": {"name": "j", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
        "spec": {"suspend": True},
        "status": {},
    }
    assert reading(job=suspended, refusal="never asked").status.note == "waits in the queue q"


def test_a_pod_in_place_of_the_first_is_not_the_job():
    found = reading(pod(uid="u2", state={"running": {}}, phase="Running"))
    assert (found.status.cause, found.end.cause) == (Cause.PREEMPTED, Cause.PREEMPTED)


def test_a_pod_that_is_ending_still_runs_until_its_node_is_lost_for_half_a_minute():
    running = {"state": {"running": {}}, "phase": "Running"}
    assert reading(pod(deleted_s=-50, **running)).status.state is JobState.RUNNING
    assert reading(pod(deleted_s=29, **running), nodes=()).status.state is JobState.RUNNING
    lost = reading(pod(deleted_s=31, **running), nodes=())
    assert (lost.status.cause, lost.end.cause) == (Cause.NODE_LOST, Cause.NODE_LOST)
    assert (
        reading(pod(deleted_s=31, **running), nodes=None).status.state is JobState.RUNNING
    )  # we may not know the nodes


def test_a_job_that_was_cancelled_is_cancelled_however_its_pod_ended():
    job = {
        **JOB,
        "metadata": {
            **JOB["metadata"],
            "annotations": {END: to_text(JobStatus(JobState.ENDED, None, Cause.CANCELLED, "cancelled"))},
        },
    }
    assert reading(pod(phase="Failed", state=terminated(137)), job=job).status.cause is Cause.CANCELLED
    assert reading(pod(phase="Running", state={"running": {}}), job=job).status.state is JobState.RUNNING


def test_an_image_is_waited_for_and_a_name_that_is_none_is_not():
    def waiting(reason, seconds):
        return pod(
            phase="Pending",
            state={"waiting": {"reason": reason}},
            startTime=(NOW - timedelta(seconds=seconds)).isoformat(),
        )

    assert reading(waiting("ImagePullBackOff", 59)).status.state is JobState.WAITING
    assert reading(waiting("ImagePullBackOff", 61)).status == JobStatus(
        JobState.ENDED, None, Cause.NO_IMAGE, "an/image:1: ImagePullBackOff"
    )
    assert reading(waiting("InvalidImageName", 0)).status.cause is Cause.NO_IMAGE


@pytest.mark.parametrize(
    ("before", "now", "both"),
    [
        (b"", b"a\n", b"a\n"),
        (b"a\n", b"a\nb\n", b"a\nb\n"),
        (b"a\nb\n", b"", b"a\nb\n"),
        (b"a\nb\n", b"a\n", b"a\nb\n"),
        (b"a\n", b"z\n", b"a\nz\n"),
    ],
)
def test_a_log_grows(before, now, both):
    assert joined(before, now) == both


def test_of_a_log_whose_beginning_is_forgotten_all_is_kept():
    text = b"".join(b"line %d\n" % number for number in range(2000))
    assert joined(text[:15000], text[5000:]) == text


@pytest.mark.parametrize(("ended_s", "is_decided"), [(5, False), (20, True)])
def test_a_job_on_several_nodes_ends_as_its_first_pod_and_once_no_other_lives(ended_s, is_decided):
    job = {**JOB, "spec": {"completions": 2}}
    finished = (NOW - timedelta(seconds=ended_s)).isoformat()
    first = pod(phase="Failed", state=terminated(75, finishedAt=finished))
    living = pod(uid="u2", state={"running": {}})
    found = reading(first, living, job=job)
    assert (found.status.state, found.status.note) == (JobState.RUNNING, "the pods of its other nodes are ending")
    assert found.end == (JobStatus(JobState.ENDED, 75, Cause.EXITED) if is_decided else None)
    killed = pod(uid="u2", phase="Failed", state=terminated(137))
    assert reading(first, killed, job=job).status == JobStatus(JobState.ENDED, 75, Cause.EXITED)


def test_where_the_first_pod_is_gone_the_job_is_over_once_no_other_lives():
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
    job = {**JOB, "spec": {"completions": 2}, "status": failed}
    assert reading(pod(uid="u2", state={"running": {}}), job=job).status.state is JobState.RUNNING
    assert reading(job=job).status == JobStatus(JobState.ENDED, None, Cause.PREEMPTED, "its pod was deleted")
