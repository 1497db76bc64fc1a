"""Backend of this machine: each job is a process that outlives its submitter, with GPU slots that
all jobs of the machine share.

A supervisor (`local_job.py`) holds the job's slots, runs its command and records how it ended in a
folder of the job's, so that a flow that died finds its jobs again. It lives as long as it holds a
lock, which the kernel frees with it; a pid may be another process's by now. A job without a
supervisor is over once none of its processes lives: asking for its status kills those that do.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posttrain.dispatch.backend import Cause, JobSpec, JobState, JobStatus
from posttrain.dispatch.processes import kill_marked, kill_tree
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.locks import is_held
from posttrain.runtime.state import private, private_folder

SPEC, LOCK, START, END = "spec.json", "lock", "start.json", "end.json"
VISIBLE = "CUDA_VISIBLE_DEVICES"
# Keys of the flow's Prefect server, with which a stage has nothing to do.
WITHHELD = ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_KEY")
START_PATIENCE_S = 60.0  # a supervisor is there in a fraction of a second, unless it died at once
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class LocalBackend:
    """Jobs of this machine. `state` is a folder on a local disk for jobs and slots; backends with
    the same folder share `num_gpus` slots."""

    def __init__(self, state: Path, *, num_gpus: int) -> None:
        self._state, self._num_gpus = state.resolve(), num_gpus

    def submit(self, spec: JobSpec) -> str:
        if not _NAME.fullmatch(spec.name):
            raise ConfigurationError(
                f"a job cannot be named {spec.name!r}: 1 to 63 lower-case letters, digits and inner dashes"
            )
        if spec.resources.gpus > self._num_gpus:
            raise ConfigurationError(
                f"{spec.name} wants {spec.resources.gpus} GPUs and this machine has {self._num_gpus} slots: "
                "it would wait for ever. Ask for fewer, or name another target"
            )
        named = len(visible_gpus(range(self._num_gpus)))
        if 0 < named < self._num_gpus:
            raise ConfigurationError(
                f"this machine's target has {self._num_gpus} GPU slots, and {VISIBLE} names {named} GPUs: "
                f"two jobs would share one. Set num_gpus to {named} in infra/dispatch.yaml"
            )
        job = private_folder(self._job(spec.name))
        # Two submitters at once both start a supervisor, of which the second finds the lock there.
        if not (job / LOCK).exists():
            places = {"folder": str(spec.folder.resolve()), "log": str(spec.log.resolve())}
            write_json(job / SPEC, {**asdict(spec), **places})
            module = "posttrain.dispatch.backends.local_job"
            command = [sys.executable, "-m", module, str(job), str(self._state / "slots"), str(self._num_gpus)]
            environment = {name: text for name, text in os.environ.items() if name not in WITHHELD}
            quiet = subprocess.DEVNULL
            subprocess.Popen(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        return spec.name

    def status(self, job_id: str) -> JobStatus:
        job = self._job(job_id)
        is_supervised = is_held(job / LOCK)  # looked at first: a supervisor may write the end and go between two looks
        if (job / END).exists():
            end = json.loads((job / END).read_text(encoding="utf-8"))
            return JobStatus(JobState.ENDED, end["exit_code"], Cause(end["cause"]), end["note"])
        if is_supervised and (job / START).exists():
            return JobStatus(JobState.RUNNING)
        if is_supervised:
            return JobStatus(JobState.WAITING, note=f"waits for a free GPU: {self._num_gpus} on this machine")
        if (job / LOCK).exists():
            if is_held(job / LOCK) or (job / END).exists():  # since the first look
                return self.status(job_id)
            return self._lost(job)
        if not (job / SPEC).exists():
            return JobStatus(JobState.GONE)
        if time.time() - (job / SPEC).stat().st_mtime < START_PATIENCE_S:
            return JobStatus(JobState.WAITING, note="it is being started")
        self._end_unstarted(job, Cause.NODE_LOST, "its supervisor never started")
        return self.status(job_id)

    def cancel(self, job_id: str) -> None:
        job = self._job(job_id)
        supervisor = _supervisor(job)
        if (job / END).exists() or not (job / SPEC).exists():
            return
        if supervisor is not None:
            self._kill(job, supervisor)
        elif (job / LOCK).exists():
            self.status(job_id)
        else:
            self._end_unstarted(job, Cause.CANCELLED, "cancelled")

    def _lost(self, job: Path) -> JobStatus:
        """Status of a job whose supervisor is dead: another attempt may start once no process of
        this one lives."""
        if left := kill_marked(str(job)):
            pids = ", ".join(map(str, left))
            return JobStatus(JobState.RUNNING, note=f"its supervisor is gone, and it does not die: processes {pids}")
        note = "its supervisor is gone: killed, or the machine was restarted"
        write_json(job / END, {"exit_code": None, "cause": Cause.NODE_LOST, "note": note})
        return self.status(job.name)

    def _end_unstarted(self, job: Path, cause: Cause, note: str) -> None:
        """End a job whose supervisor has no lock yet. The supervisor looks for an end once it has
        the lock, and this method for the lock once the end is written: one of them sees the
        other."""
        write_json(job / END, {"exit_code": None, "cause": cause, "note": note})
        if (supervisor := _supervisor(job)) is not None:
            self._kill(job, supervisor)

    def _kill(self, job: Path, supervisor: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGSTOP)  # or it would write down how its command ended, that of the kill
            kill_tree(supervisor, keep_root=True)
            if not (job / END).exists():
                write_json(job / END, {"exit_code": None, "cause": Cause.CANCELLED, "note": "cancelled"})
            # Last: a job without supervisor and end would count as one whose node died, and run
            # again.
            os.kill(supervisor, signal.SIGKILL)

    def _job(self, name: str) -> Path:
        return self._state / "jobs" / name


def visible_gpus(slots: Sequence[int]) -> list[str]:
    """CUDA_VISIBLE_DEVICES of a job in these slots: the GPUs of those numbers, among those that the
    variable names already."""
    if VISIBLE not in os.environ:
        return [str(slot) for slot in slots]
    names = [name.strip() for name in os.environ[VISIBLE].split(",") if name.strip()]
    return [names[slot] for slot in slots if slot < len(names)]


def write_json(path: Path, content: Any) -> None:
    """Replace the file in one step: a reader sees the old content or the new, never a part."""
    # Two threads of a run may cancel one job.
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with open(partial, "w", encoding="utf-8", opener=private) as file:
        json.dump(content, file)
    partial.replace(path)


def _supervisor(job: Path) -> int | None:
    """The number of the job's supervisor, None where it does not live."""
    return int((job / LOCK).read_text(encoding="ascii")) if is_held(job / LOCK) else None
