"""How one stage is run through DVC from a program: its output line by line, and afterwards whether it ran, was already there, or why it failed.

`dvc repro` runs in a process of its own: its output can be followed, its death harms nobody, and what it records is what a person's `dvc repro`
records. Never two at a time in one folder: DVC's locks make the second fail.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Literal

from posttrain.exits import meaning_of

NUM_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a stage ended. `exit_code` is its command's; None where DVC itself refused to start or to record it. `tail`: the last lines printed."""

    state: Literal["cached", "completed", "failed"]
    seconds: float
    exit_code: int | None
    tail: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """For a failed stage, one sentence: the exit code and what it means."""
        if self.exit_code is None:
            return "dvc could not run or record the stage"
        return f"exit code {self.exit_code} ({meaning_of(self.exit_code)})"


class Reproducer:
    """Runs the stages of one folder, one at a time, and can ask the one that runs to end."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[str] | None = None

    def reproduce(self, name: str, follow: Callable[[str], None]) -> Outcome:
        """Run a stage whose upstream is up to date, as `single_stage.py` does; `follow` gets each line that is not empty, as it is printed."""
        tail: deque[str] = deque(maxlen=NUM_TAIL_LINES)
        has_run, exit_code, started_s = False, None, monotonic()
        with self._start(name) as process:
            for line in filter(None, _lines(process)):
                follow(line)
                tail.append(line)
                has_run = has_run or line == f"Running stage '{name}':"
                if found := re.search(r"failed to run: .*, exited with (-?\d+)$", line):
                    exit_code = int(found.group(1))
        seconds = monotonic() - started_s
        if process.returncode:
            return Outcome("failed", seconds, process.returncode if process.returncode < 0 else exit_code, tuple(tail))
        return Outcome("completed" if has_run else "cached", seconds, 0, tuple(tail))

    def interrupt(self) -> None:
        """Ask the running stage to end at its next checkpoint, with a code of its own; may be called in a signal handler, and again."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def _start(self, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "posttrain.provenance.single_stage", "--", name]
        self._process = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                'trap "" TERM; exec "$@"',
                "sh",
                *command,
            ],  # only the stage hears it: DVC and its shell would die and lose its exit code
            cwd=self._root,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a group, which reaches DVC's child
        )
        return self._process


def _environment() -> dict[str, str]:
    """`python` in a stage's command is the one that runs this, activated or not; unbuffered, or a stage's progress would arrive when it is over."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return (line.rstrip() for line in process.stdout)
