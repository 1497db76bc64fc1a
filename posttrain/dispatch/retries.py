"""Decides whether another attempt can help, by the job's real end: a backend cannot tell a bad knob
from a machine that died."""

from enum import StrEnum

from posttrain.dispatch.backend import Cause, JobStatus
from posttrain.runtime.exits import Interrupted, is_death_by_signal, meaning_of

MAX_ATTEMPTS = (
    20  # a job that is preempted again and again gets on, a checkpoint at a time; one that is lost so often never will
)


class Verdict(StrEnum):
    """The dispatcher's next action."""

    DONE = "done"
    AGAIN = "again"
    FAILED = "failed"


def verdict(status: JobStatus, *, attempt: int, is_left_over: bool = False) -> Verdict:
    """`status` is of a job that is over; attempts count from 1. Preempted, lost and interrupted
    jobs run again, nothing else does.

    One that `is_left_over` was over before its run, which died, could hear of it: it runs again
    where it was killed, too, because what killed the one may have killed the other, and nobody has
    decided about it yet.
    """
    if status.cause is Cause.EXITED and status.exit_code == 0:
        return Verdict.DONE
    is_no_fault = status.cause in (Cause.PREEMPTED, Cause.NODE_LOST, None) or (
        status.cause is Cause.EXITED and status.exit_code == Interrupted.code
    )
    is_no_fault |= is_left_over and status.cause is Cause.EXITED and is_death_by_signal(status.exit_code or 0)
    return Verdict.AGAIN if is_no_fault and attempt < MAX_ATTEMPTS else Verdict.FAILED


def reason(status: JobStatus, *, attempt: int) -> str:
    """One sentence for a person: what happened, and what to do."""
    told = f" ({status.note})" if status.note else ""
    match status.cause:
        case Cause.OUT_OF_MEMORY:
            return (
                f"out of memory{told}: give the stage more memory in infra/dispatch.yaml, "
                "or a smaller batch in params.yaml"
            )
        case Cause.OUT_OF_DISK:
            return (
                f"out of disk{told}: raise that limit in infra/kubernetes/job.yaml (ephemeral-storage of the "
                "container, sizeLimit of the volume) or in the namespace's LimitRange"
            )
        case Cause.TIME_LIMIT:
            return (
                f"time limit{told}: what is done is kept; give the stage more time in infra/dispatch.yaml and run again"
            )
        case Cause.UNSCHEDULABLE:
            return f"never scheduled{told}: no node can give what the stage asks for in infra/dispatch.yaml"
        case Cause.NO_IMAGE:
            return f"its image cannot be pulled{told}: is its name right, and may the pool read it?"
        case Cause.CANCELLED:
            return f"cancelled{told}"
        case Cause.EXITED:
            return f"exit code {status.exit_code}{told} ({meaning_of(status.exit_code or 0)})"
        case Cause.PREEMPTED | Cause.NODE_LOST | None:
            return (
                f"{status.cause or 'lost'}{told}, {attempt} times: what is done is kept; "
                "run again when the pool is steady"
            )
