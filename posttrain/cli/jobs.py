"""`posttrain jobs`: lists, follows and cancels the jobs of flows, and reconciles them after a
crash.

Backends are imported where they are used: the console command loads this module for every command.
"""

import argparse
import functools
import time
from datetime import datetime
from pathlib import Path

from posttrain.cli.command import Commands, add_command, add_commands
from posttrain.dispatch.backend import Backend
from posttrain.dispatch.dispatcher import CANCEL_PATIENCE_S, LogTail, cancel_jobs
from posttrain.dispatch.records import JobRecord, JobRecords, is_alive
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.redaction import redact
from posttrain.runtime.state import JOBS, RUNS, STATE_DIR

_LOOK_S = 0.5


def add_jobs(commands: Commands) -> None:
    jobs = add_commands(commands, "jobs", "List, read, cancel and reconcile the jobs that flows started.")
    one_job = argparse.ArgumentParser(add_help=False)
    one_job.add_argument("job", metavar="JOB", help="a job's name from `posttrain jobs list`, or its beginning")
    parser = add_command(jobs, "list", list_jobs)
    parser.add_argument("--running", dest="is_running", action="store_true", help="only those that are not over")
    parser.add_argument("--limit", type=int, default=20, help="show at most this many, newest first")
    parser = add_command(jobs, "tail", tail, parents=[one_job])
    parser.add_argument("-f", "--follow", dest="is_followed", action="store_true", help="until it is over")
    add_command(jobs, "cancel", cancel, parents=[one_job])
    add_command(jobs, "reconcile", reconcile)


def list_jobs(is_running: bool, limit: int) -> None:
    """Every attempt at a stage, newest first: where it ran, since when, and how it ended."""
    found = [record for record in _records().all() if not (is_running and record.is_over)]
    for record in found[:limit]:
        since = datetime.fromtimestamp(record.submitted_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        seconds = (record.ended_at or time.time()) - record.submitted_at
        print(
            f"{record.name:<40} {record.target:<10} {record.job_id or '-':<20} {since} {seconds:>8.0f} s  "
            f"{_state(record)}"
        )
    print(f"{min(limit, len(found))} of {len(found)} jobs")


def tail(job: str, is_followed: bool) -> None:
    """Print the log of a job."""
    record = _find(job)
    log, backend = LogTail(record.log), None if record.is_over else _backend(record.target)
    while True:
        is_over = record.is_over or not is_followed or backend is None or backend.status(record.handle).is_over
        for line in log.new_lines(is_whole=is_over):
            print(escape_control_chars(redact(line)), flush=True)
        if is_over:
            return
        time.sleep(_LOOK_S)
        record = _find(record.name)


def cancel(job: str) -> None:
    """Kill a job with all its processes. The run that waits for it, if one does, fails."""
    record = _find(job)
    if record.is_over:
        print(f"{record.name} is over already: {_state(record)}")
    else:
        _cancel(record, _backend(record.target))


def reconcile() -> None:
    """Set the records right with the backends, and kill every job that no living run waits for."""
    records, backend_of = _records(), functools.cache(_backend)  # a backend keeps what it has been told
    for record in records.not_over():
        status = backend_of(record.target).status(record.handle)
        if is_alive(STATE_DIR / RUNS, record.owner):  # which records its end, and may be submitting it right now
            print(f"{record.name}: {status.state}, and a living run waits for it")
        elif status.is_over:
            print(f"{record.name}: it is over ({status.cause or 'the backend does not know it'})")
            records.end(record.name, status)
        else:
            print(f"{record.name}: the run that waited for it is dead; it is cancelled")
            _cancel(record, backend_of(record.target))


def _backend(target: str) -> Backend:
    from posttrain.dispatch.settings import load_settings

    return load_settings(Path()).backend(target, Path(), STATE_DIR)


def _cancel(record: JobRecord, backend: Backend) -> None:
    [status] = cancel_jobs(backend, _records(), [record])
    if not status.is_over:
        raise Interrupted(
            f"{record.name} is still {status.state} on {record.target} {CANCEL_PATIENCE_S:g} s after it was cancelled; "
            "ask again"
        )
    print(f"{record.name} is cancelled")


def _find(job: str) -> JobRecord:
    """The job of that name, else the newest whose name begins so."""
    records = _records().all()
    found = next((record for record in records if record.name == job), None) or next(
        (one for one in records if one.name.startswith(job)), None
    )
    if found is None:
        raise ConfigurationError(
            f"no flow of this folder started a job {job!r}; `posttrain jobs list` shows those there are"
        )
    return found


def _state(record: JobRecord) -> str:
    if not record.is_over:
        return "not over"
    code = "" if record.exit_code is None else f" {record.exit_code}"
    return f"{record.cause}{code}{f': {record.note}' if record.note else ''}"


def _records() -> JobRecords:
    path = STATE_DIR / JOBS
    if not path.exists():
        raise ConfigurationError(
            f"no flow has started a job in {Path.cwd()}: there is no {path}. Stand in the repository's folder"
        )
    return JobRecords(path)
