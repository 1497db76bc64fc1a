"""Contract of a backend: it starts a command, reports its status, and cancels it. A job is known by
its name, so that a submitter who lost its id finds it again.

A backend decides nothing: the dispatcher decides by a job's end whether to start it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

NODE, NO_OTHERS = "POSTTRAIN_NODE", ".posttrain/no-nodes"  # the file says that other nodes cannot start


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that a job reserves: `nodes`, and on each of them the others. `time_limit_s` is
    wall-clock; `shm_gb` the size of /dev/shm where the backend gives each job its own."""

    nodes: int = 1
    gpus: int = 0
    cpus: int = 1
    memory_gb: float = 4.0
    time_limit_s: int = 3600
    shm_gb: float = 1.0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One command in one folder. `name` is unique among all jobs that ever were, and of letters,
    digits and `-` only, 63 at most.

    `command` is a list of arguments: no backend puts it through a shell unquoted. `environment` is
    added to what the backend gives; keys (secrets) are not in it. stdout and stderr go to `log`. On
    several nodes each runs the command, with `NODE` in its environment; the job's end is that of
    the node 0.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    log: Path
    resources: Resources = field(default_factory=Resources)
    environment: Mapping[str, str] = field(default_factory=dict)


class JobState(StrEnum):
    """State of a job. `GONE` is one that the backend does not know (any more)."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"


class Cause(StrEnum):
    """Reason why a job ended."""

    EXITED = "exited"  # by itself, with an exit code
    OUT_OF_MEMORY = "out of memory"
    OUT_OF_DISK = "out of disk"  # over a limit of its own, on a node that has more
    TIME_LIMIT = "time limit"
    PREEMPTED = "preempted"
    NODE_LOST = "node lost"
    CANCELLED = "cancelled"
    UNSCHEDULABLE = "unschedulable"
    NO_IMAGE = "no image"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """`exit_code` and `cause` are of an ended job; a shell's 128 + n stands for death by signal n.
    `note` is the backend's own reason for waiting, or for the end."""

    state: JobState
    exit_code: int | None = None
    cause: Cause | None = None
    note: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in (JobState.ENDED, JobState.GONE)


class Backend(Protocol):
    """Somewhere that jobs run. Every method may be called from any process on the submitter's
    machine, and by one that did not submit the job.

    All raise Interrupted where the backend cannot be reached at the moment, ConfigurationError
    where it refuses what it was asked.
    """

    def submit(self, spec: JobSpec) -> str:
        """Start the job and return the backend's id of it. A job of that name that is there already
        is not started again: its id comes back."""
        ...

    def status(self, job_id: str) -> JobStatus:
        """The job's state now."""
        ...

    def cancel(self, job_id: str) -> None:
        """Kill it with all its processes; within five seconds its status says that it is over, and
        asked again until then it catches one that was just being started too. Nothing where it is
        over already. Not a preemption: it gets no time for a checkpoint."""
        ...
