"""Storage of a job's files and results: a disk that both sides see, or S3."""

import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

from posttrain.dispatch.settings import S3Remote
from posttrain.pipeline.job.single_stage import NOT_THERE
from posttrain.pipeline.remote.names import JobFolder, options
from posttrain.pipeline.snapshot import Snapshot, copy_snapshot
from posttrain.runtime.exits import DataError, Interrupted, as_error

SUBMIT, SINGLE_STAGE = "posttrain.pipeline.remote.submit", "posttrain.pipeline.job.single_stage"


class SharedDisk:
    """Storage of jobs that work in a folder that the submitter sees, on DVC's own cache. `python`
    is the interpreter there. A storage moves snapshots to jobs and results back; it is called from
    several threads, for different stages."""

    def __init__(self, *, python: str) -> None:
        self._python = python

    def command(self, frozen: Snapshot) -> tuple[str, ...]:
        """Command of the job, in its folder."""
        return (self._python, "-u", "-m", "posttrain.pipeline.job.shared_disk", "--", frozen.stage)

    def prepare(self, frozen: Snapshot, folder: Path, attempt: int) -> None:  # noqa: ARG002 names of folders tell attempts apart
        """Make the job's folder, and have the snapshot where the job finds it."""
        copy_snapshot(frozen, folder)

    def has_result(self, frozen: Snapshot) -> bool:
        """True if DVC's run cache has a result of these inputs, fetched from the storage where it
        is there. No job has been started for it."""
        return frozen.has_run

    def collect(self, frozen: Snapshot, folder: Path, *, is_good: bool) -> Snapshot:
        """Collect after the job its result, if it ended well, and its trace stores; gives the
        snapshot where they lie."""
        return Snapshot(folder, frozen.stage, frozen.key, has_run=is_good)


class S3:
    """The same for jobs that see nothing of the submitter's disk. `submitter` names the tree among
    all that share the bucket; `python` is the interpreter there."""

    def __init__(self, remote: S3Remote, *, submitter: str, python: str) -> None:
        self._remote, self._submitter, self._python = remote, submitter, python

    def command(self, frozen: Snapshot) -> tuple[str, ...]:
        return (self._python, "-u", "-m", "posttrain.pipeline.job.s3", *self._options(frozen), "--", frozen.stage)

    def prepare(self, frozen: Snapshot, folder: Path, attempt: int) -> None:
        """Raises ConfigurationError where the bucket cannot be used, Interrupted where S3 does not
        answer."""
        folder.mkdir(parents=True, exist_ok=True)
        self._run(frozen, "prepare", f"--attempt={attempt}")

    def has_result(self, frozen: Snapshot) -> bool:
        """Raises the errors of `prepare`."""
        return frozen.has_run or self._run(frozen, "collect")

    def collect(self, frozen: Snapshot, folder: Path, *, is_good: bool) -> Snapshot:  # noqa: ARG002 nothing lies in the folder
        """Raises the errors of `prepare`."""
        is_there = self._run(frozen, "collect", "--is-over")
        if is_good and not (is_there and restore(frozen)):
            raise DataError(
                f"{frozen.stage} ended well and {self._remote.url} has no whole result of it: "
                "something deletes there. Run again"
            )
        return frozen

    def _options(self, frozen: Snapshot) -> tuple[str, ...]:
        return options(self._remote, JobFolder(self._submitter, frozen.key))

    def _run(self, frozen: Snapshot, *command: str) -> bool:
        """False where something is not there."""
        name, *more = command
        return _run_program(frozen, SUBMIT, name, *self._options(frozen), *more)


Storage: TypeAlias = SharedDisk | S3


def restore(snapshot: Snapshot) -> bool:
    """Restore outputs and entry from the run cache into the snapshot; False where its files are
    gone."""
    return _run_program(snapshot, SINGLE_STAGE, "--from-run-cache")


def _run_program(snapshot: Snapshot, program: str, *arguments: str) -> bool:
    """Run one of our programs on a snapshot, in a process of its own; False where
    something is not there. Raises the StageError that it ended with.

    Started in our own folder, it is our own code: the snapshot may be of another commit.
    """
    line = [sys.executable, "-m", program, *arguments, f"--folder={snapshot.folder}", "--", snapshot.stage]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode in (0, NOT_THERE):
        return done.returncode == 0
    messages = [text for text in done.stderr.splitlines() if text.strip()] or [f"it ended with {done.returncode}"]
    failed = f"{snapshot.stage}: {' '.join((program, *arguments[:1]))} failed: {messages[-1]}"
    raise as_error(done.returncode, messages[-1]) or Interrupted(failed)
