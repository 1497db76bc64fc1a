"""Runs one stage as a job, from its first attempt to its end: it is found again after a crash,
started again where that can help, and never runs twice at once.

The record is written before the job is started and names it, and a backend starts a name once. So
whatever process dies in between, the next run finds the same job, or starts the one that was never
started.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from posttrain.dispatch.backend import Backend, Cause, JobSpec, JobState, JobStatus, Resources
from posttrain.dispatch.records import JobRecord, JobRecords
from posttrain.dispatch.retries import next_step, reason
from posttrain.runtime.exits import ConfigurationError, Interrupted, meaning_of
from posttrain.runtime.state import private, private_folder

ATTEMPT = "POSTTRAIN_ATTEMPT"  # in a job's environment: its number, from 1
MAX_PAUSE_S = 60.0
CANCEL_PATIENCE_S = 15.0
OUTAGE_PATIENCE_S = 600.0  # a backend's controller may be down for so long; its jobs live on
_CANCEL_POLL_S = 0.1
_KEY_DIGITS, _SUBMITTER_DIGITS = 10, 6
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """A job to run: `command` in the folder that `prepare(attempt)` makes, which no other attempt
    shares. `key` names the inputs."""

    stage: str
    key: str
    command: tuple[str, ...]
    prepare: Callable[[int], Path]
    resources: Resources = field(default_factory=Resources)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkEnd:
    """The last attempt and how it ended. `reason` is for a person, empty where all is well;
    `num_preempted`: how often it had to go on again."""

    record: JobRecord
    status: JobStatus
    reason: str
    num_preempted: int

    @property
    def is_good(self) -> bool:
        return not self.reason


class Dispatcher:
    """Runs work on one backend for one run (`owner`). `log` gets a line whenever something about a
    job changes."""

    def __init__(
        self, backend: Backend, records: JobRecords, *, target: str, owner: str, logs: Path, poll_s: float = 1.0
    ) -> None:
        self._backend, self._records, self._target = backend, records, target
        self._owner, self._logs, self._poll_s = owner, logs, poll_s

    def run(
        self,
        work: Work,
        log: Callable[[str], None],
        *,
        follow: Callable[[str], None] = lambda _: None,
        watch: Callable[[JobStatus, int], None] = lambda _status, _num_preempted: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> WorkEnd:
        """Run all attempts. `follow` gets the lines that they print; `watch` gets each new status,
        with the number of attempts that were preempted, interrupted or on a node that died. Once
        `is_stopped`, the job is cancelled and Interrupted raised."""
        pause_s = 0.0
        for attempt in itertools.count(1):
            if is_stopped():
                raise Interrupted(
                    f"{work.stage} was not started, because its run was stopped. Run it again: what is done is kept"
                )
            is_left_over = self._is_left_over(work.key, log)
            record = self._attached(work, log)
            status = self._wait(record, log, follow, watch, is_stopped, num_preempted=attempt - 1)
            self._records.end(record.name, status)
            match next_step(status, attempt=attempt, is_left_over=is_left_over):
                case "done":
                    return WorkEnd(record, status, "", attempt - 1)
                case "failed":
                    return WorkEnd(record, status, reason(status, attempt=attempt), attempt - 1)
            ended = meaning_of(status.exit_code or 0) if status.cause is Cause.EXITED else status.cause
            log(
                f"{record.name}: {ended}{f' ({status.note})' if status.note else ''}; "
                "it is started again and goes on from its checkpoint"
            )
            watch(status, attempt)
            self._pause(pause_s, is_stopped)
            pause_s = min(max(2 * pause_s, 1.0), MAX_PAUSE_S)
        raise AssertionError("itertools.count never ends")

    def owns(self, record: JobRecord) -> bool:
        """True where this run may land the job's result: no later attempt and no other run has
        taken its place."""
        latest = self._records.latest(record.key)
        return latest is not None and (latest.attempt, latest.owner) == (record.attempt, self._owner)

    def has_job(self, key: str) -> bool:
        """True where a job for it, an earlier run's perhaps, is recorded here as not over: its end
        is still to be read."""
        latest = self._records.latest(key)
        return latest is not None and not latest.is_over and latest.target == self._target

    def cancel_all(self) -> None:
        """Cancels the jobs that this run waits for, whoever started them; returns when they are
        dead, or after a while where the backend does not say so."""
        own = [
            record
            for record in self._records.all()
            if (record.owner, record.target) == (self._owner, self._target) and not record.is_over
        ]
        cancel_jobs(self._backend, self._records, own)

    def _pause(self, seconds: float, is_stopped: Callable[[], bool]) -> None:
        """Between two attempts, longer each time: what ends at once (a checkpoint that another
        process still holds) must not use them up."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not is_stopped():
            time.sleep(min(self._poll_s, seconds))

    def _is_left_over(self, key: str, log: Callable[[str], None]) -> bool:
        """True where the job of another run is over, and nobody has recorded how."""
        latest = self._records.latest(key)
        if latest is None or latest.is_over or latest.job_id is None:
            return False
        if latest.owner == self._owner or latest.target != self._target:
            return False
        return self._reached(partial(self._backend.status, latest.handle), log).is_over

    def _attached(self, work: Work, log: Callable[[str], None]) -> JobRecord:
        """The job that runs this work already, or a new attempt."""
        while True:
            record = self._records.latest(work.key)
            if record is None or record.is_over:
                record = self._new(work, attempt=record.attempt + 1 if record else 1)
                if not self._records.add(record):
                    continue
            elif record.target != self._target:
                raise ConfigurationError(
                    f"{record.name} is on {record.target} still, and would run twice if {self._target} started "
                    "it too: name that target again, or "
                    f"end it with `posttrain jobs cancel {record.name}`"
                )
            elif record.owner != self._owner:
                self._records.set_owner(record.name, self._owner)
                log(f"{record.name}: found again, {'started' if record.job_id else 'not started'} by an earlier run")
            if record.job_id is None:
                environment = {**work.environment, ATTEMPT: str(record.attempt)}
                spec = JobSpec(record.name, work.command, record.folder, record.log, work.resources, environment)
                job_id = self._reached(partial(self._backend.submit, spec), log)
                self._records.set_job_id(record.name, job_id)
                log(f"{record.name}: submitted to {self._target} as {job_id}")
            return self._records.latest(work.key) or record

    def _new(self, work: Work, *, attempt: int) -> JobRecord:
        name = f"{_slug(work.stage)}-{work.key[:_KEY_DIGITS]}-{self._records.submitter[:_SUBMITTER_DIGITS]}-{attempt}"
        folder = work.prepare(attempt)
        log = private_folder(self._logs) / f"{name}.log"
        with open(log, "ab", opener=private):  # a backend that opens it itself would let all users read it
            pass
        return JobRecord(name, work.stage, work.key, attempt, self._target, None, folder, log, self._owner, time.time())

    def _wait(
        self,
        record: JobRecord,
        log: Callable[[str], None],
        follow: Callable[[str], None],
        watch: Callable[[JobStatus, int], None],
        is_stopped: Callable[[], bool],
        *,
        num_preempted: int,
    ) -> JobStatus:
        shown, tail, is_cancelled = "", LogTail(record.log), False
        while True:
            status = self._reached(partial(self._backend.status, record.handle), log)
            for line in tail.new_lines(is_whole=status.is_over):
                follow(line)
            if status.is_over and is_cancelled:
                self._records.end(record.name, status)
                raise Interrupted(f"{record.name} was cancelled, because its run was. Run again: what is done is kept")
            if status.is_over:
                return status
            if is_stopped():  # at every look: a backend may have had nothing to cancel yet
                self._reached(partial(self._backend.cancel, record.handle), log)
                is_cancelled = True  # and is over when it is dead: recorded sooner, another attempt could run beside it
            now = f"{record.name}: {status.state}{f', {status.note}' if status.note else ''}"
            if now != shown and (status.state is not JobState.WAITING or status.note):
                log(now)
                watch(status, num_preempted)
                shown = now
            time.sleep(self._poll_s)

    def _reached(self, ask: Callable[[], T], log: Callable[[str], None]) -> T:
        """The backend's answer; one that cannot be reached is asked again for a while, because its
        jobs live on without it."""
        deadline, is_logged = time.monotonic() + OUTAGE_PATIENCE_S, False
        while True:
            try:
                return ask()
            except Interrupted as error:
                if time.monotonic() > deadline:
                    raise
                if not is_logged:
                    log(f"{self._target} cannot be reached ({error}); asking again, jobs that run there live on")
                    is_logged = True
                time.sleep(max(self._poll_s, 1.0))


class LogTail:
    """Follows a growing log that may not be there yet, each line once. Bytes that are no UTF-8
    become replacement characters, a progress bar's overwritten states become lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def new_lines(self, *, is_whole: bool) -> Iterator[str]:
        """Lines added since the last call, without empty ones; with `is_whole` the last one too,
        though no newline ends it."""
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._offset)
                added = log.read()
            self._offset += len(added)
            *lines, self._rest = (self._rest + added).replace(b"\r", b"\n").split(b"\n")
            lines += [self._rest] if is_whole else []
            yield from (line.decode(errors="replace").rstrip() for line in lines if line.strip())


def cancel_jobs(backend: Backend, records: JobRecords, jobs: Sequence[JobRecord]) -> list[JobStatus]:
    """Cancel jobs of one backend, wait at most 15 s until it reports them over, and record the ends
    of those that are. Returns the last status of each.

    A job that is just being submitted, and so unknown to its backend, is left to its submitter, or
    to the next run, which finds it by its name.
    """
    for job in jobs:
        backend.cancel(job.handle)
    deadline, last = time.monotonic() + CANCEL_PATIENCE_S, []
    for job in jobs:
        while not (status := backend.status(job.handle)).is_over and time.monotonic() < deadline:
            time.sleep(_CANCEL_POLL_S)
            backend.cancel(job.handle)  # again: it may have had nothing to cancel yet
        # Recorded only once it is dead: recorded sooner, another attempt could run beside it.
        if status.is_over and (job.job_id or status.state is not JobState.GONE):
            records.end(job.name, status)
        last.append(status)
    return last


def _slug(stage: str) -> str:
    """The part of a stage's name that a job's name may hold."""
    letters = (letter if letter.isascii() and letter.isalnum() else "-" for letter in stage.lower())
    return "".join(letters).strip("-")[:36] or "stage"
