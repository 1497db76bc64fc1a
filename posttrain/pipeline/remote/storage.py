"""A job's files get to it, and its result back, by a disk that both see or by S3; the flow knows
one seam."""

import subprocess
import sys
from pathlib import Path
from typing import Protocol

from posttrain.pipeline.job.single_stage import NOT_THERE
from posttrain.pipeline.remote.names import JobFolder, S3Remote
from posttrain.pipeline.snapshot import Snapshot, copy_snapshot
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted


class Storage(Protocol):
    """All may be called from several threads, for different stages."""

    def command(self, frozen: Snapshot) -> tuple[str, ...]:
        """What the job runs in its folder."""
        ...

    def prepare(self, frozen: Snapshot, folder: Path, attempt: int) -> None:
        """Make the job's folder, and have the snapshot where the job finds it."""
        ...

    def has_result(self, frozen: Snapshot) -> bool:
        """Whether DVC's run cache has one for these inputs, now that everybody was asked who may
        have it. No job has been started for it."""
        ...

    def collect(self, frozen: Snapshot, folder: Path, *, is_good: bool) -> Snapshot:
        """After the job: where its result lies, if it ended well, and in any case its trace stores,
        under the state folder."""
        ...


class SharedDisk:
    """Jobs work in a folder that the submitter sees, on DVC's own cache. `python` is the
    interpreter there."""

    def __init__(self, *, python: str) -> None:
        self._python = python

    def command(self, frozen: Snapshot) -> tuple[str, ...]:
        """As `Storage` has it."""
        return (self._python, "-u", "-m", "posttrain.pipeline.job.shared_disk", "--", frozen.stage)

    def prepare(self, frozen: Snapshot, folder: Path, attempt: int) -> None:  # noqa: ARG002 names of folders tell attempts apart
        """As `Storage` has it."""
        copy_snapshot(frozen, folder)

    def has_result(self, frozen: Snapshot) -> bool:
        """As `Storage` has it."""
        return frozen.has_run

    def collect(self, frozen: Snapshot, folder: Path, *, is_good: bool) -> Snapshot:
        """As `Storage` has it."""
        return Snapshot(folder, frozen.stage, frozen.key, has_run=is_good)


class S3:
    """Jobs see nothing of the submitter's disk. `submitter` names the tree among all that share the
    bucket; `python` is the interpreter there."""

    def __init__(self, remote: S3Remote, *, submitter: str, python: str) -> None:
        self._remote, self._submitter, self._python = remote, submitter, python

    def command(self, frozen: Snapshot) -> tuple[str, ...]:
        """As `Storage` has it."""
        return (self._python, "-u", "-m", "posttrain.pipeline.job.s3", *self._options(frozen), "--", frozen.stage)

    def prepare(self, frozen: Snapshot, folder: Path, attempt: int) -> None:
        """As `Storage` has it. Raises ConfigurationError where the bucket cannot be used,
        Interrupted where S3 does not answer."""
        folder.mkdir(parents=True, exist_ok=True)
        self._run(frozen, "prepare", f"--attempt={attempt}")

    def has_result(self, frozen: Snapshot) -> bool:
        """As `Storage` has it, and raises what `prepare` does."""
        return frozen.has_run or self._run(frozen, "collect")

    def collect(self, frozen: Snapshot, folder: Path, *, is_good: bool) -> Snapshot:  # noqa: ARG002 nothing lies in the folder
        """As `Storage` has it, and raises what `prepare` does."""
        is_there = self._run(frozen, "collect", "--is-over")
        if is_good and not (is_there and restore(frozen)):
            raise DataError(
                f"{frozen.stage} ended well and {self._remote.url} has no whole result of it: "
                "something deletes there. Run again"
            )
        return frozen

    def _options(self, frozen: Snapshot) -> tuple[str, ...]:
        return (*self._remote.options(), f"--place={JobFolder(self._submitter, frozen.key)}")

    def _run(self, frozen: Snapshot, *command: str) -> bool:
        """False where it says that something is not there."""
        name, *options = command
        return _ask(frozen, "transport.remote_submit", name, *self._options(frozen), *options)


def restore(snapshot: Snapshot) -> bool:
    """Outputs and entry from the run cache into the snapshot; False where its files are gone.
    Raises what the run cache's disk has to say."""
    return _ask(snapshot, "job.single_stage", "--from-run-cache")


def _ask(snapshot: Snapshot, program: str, *options: str) -> bool:
    """A program of `posttrain.pipeline` on a snapshot, in a process of its own; False where it says
    that something is not there.

    Started where we were, it is our own code: the snapshot may be of another commit.
    """
    line = [
        sys.executable,
        "-m",
        f"posttrain.pipeline.{program}",
        *options,
        f"--folder={snapshot.folder}",
        "--",
        snapshot.stage,
    ]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    said = next(
        (text for text in reversed(done.stderr.splitlines()) if text.strip()), f"it ended with {done.returncode}"
    )
    for end in (ConfigurationError, DataError, Interrupted):
        if done.returncode == end.code:
            raise end(said)
    if done.returncode not in (0, NOT_THERE):
        raise Interrupted(f"{snapshot.stage}: {' '.join((program, *options[:1]))} failed: {said}")
    return done.returncode == 0
