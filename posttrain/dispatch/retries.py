"""Decides whether another attempt can help, by the job's real end: a backend cannot tell a bad knob
from a machine that died."""

from typing import Literal, TypeAlias

from posttrain.dispatch.backend import Cause, JobStatus
from posttrain.runtime.exits import Interrupted, is_death_by_signal, meaning_of

# A job that is preempted again and again advances by a checkpoint each time; one whose node dies so
# often never will.
MAX_ATTEMPTS = 20
NextStep: TypeAlias = Literal["done", "again", "failed"]


def next_step(status: JobStatus, *, attempt: int, is_left_over: bool = False) -> NextStep:
    """Preempted jobs, interrupted jobs and those whose node died run again, nothing else does.
    `status` is of a job that is over; attempts count from 1.

    A job `is_left_over` that ended after its run had died: it runs again also where a signal killed
    it, because the same event may have killed both, and no run has decided about it yet.
    """
    if status.cause is Cause.EXITED and status.exit_code == 0:
        return "done"
    is_no_fault = status.cause in (Cause.PREEMPTED, Cause.NODE_LOST, None) or (
        status.cause is Cause.EXITED and status.exit_code == Interrupted.code
    )
    is_no_fault |= is_left_over and status.cause is Cause.EXITED and is_death_by_signal(status.exit_code or 0)
    return "again" if is_no_fault and attempt < MAX_ATTEMPTS else "failed"


def reason(status: JobStatus, *, attempt: int) -> str:
    """Explain a failed job in a sentence: its end, and the remedy."""
    note = f" ({status.note})" if status.note else ""
    match status.cause:
        case Cause.OUT_OF_MEMORY:
            return (
                f"out of memory{note}: give the stage more memory in infra/dispatch.yaml, "
                "or a smaller batch in params.yaml"
            )
        case Cause.OUT_OF_DISK:
            return (
                f"out of disk{note}: raise that limit in infra/kubernetes/job.yaml (ephemeral-storage of the "
                "container, sizeLimit of the volume) or in the namespace's LimitRange"
            )
        case Cause.TIME_LIMIT:
            return (
                f"time limit{note}: what is done is kept; give the stage more time in infra/dispatch.yaml and run again"
            )
        case Cause.UNSCHEDULABLE:
            return f"never scheduled{note}: no node can give what the stage asks for in infra/dispatch.yaml"
        case Cause.NO_IMAGE:
            return f"its image cannot be pulled{note}: is its name right, and may the backend read it?"
        case Cause.CANCELLED:
            return f"cancelled{note}"
        case Cause.EXITED:
            return f"exit code {status.exit_code}{note} ({meaning_of(status.exit_code or 0)})"
        case Cause.PREEMPTED | Cause.NODE_LOST | None:
            return (
                f"{status.cause or 'gone'}{note}, {attempt} times: what is done is kept; "
                "run again when the backend is steady"
            )
