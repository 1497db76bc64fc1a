"""How one stage is run through DVC from a program: its output line by line, and afterwards the exit
code of its own command.

`dvc repro` runs in a process of its own: its output can be followed, its death harms nobody, and
what it records is what a person's `dvc repro` records. Never two at a time in one folder: DVC's
locks make the second fail.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from posttrain.provenance.environment import path_with_python, temporary_folder
from posttrain.runtime.exits import as_shell
from posttrain.runtime.redaction import redact_lines
from posttrain.runtime.state import SNAPSHOT


class Reproducer:
    """Runs the stages of one folder, one at a time, and can ask the one that runs to end."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[str] | None = None

    def reproduce(self, name: str, follow: Callable[[str], None]) -> int:
        """Run a stage whose upstream is up to date, as `single_stage.py` does; `follow` gets each
        line that is not empty, as it is printed and without keys: it becomes a job's log, whichever
        process of the stage printed it.

        The exit code of the stage's command, 128 + n for death by signal n; 1 where DVC itself
        could not run or record it.
        """
        exit_code = 0
        with temporary_folder() as folder, self._start(name, folder) as process:
            for line in filter(None, redact_lines(_lines(process))):
                follow(line)
                if found := re.search(r"failed to run: .*, exited with (-?\d+)$", line):
                    exit_code = int(found.group(1))
        if process.returncode < 0:
            return as_shell(process.returncode)
        return as_shell(exit_code) or 1 if process.returncode else 0

    def interrupt(self) -> None:
        """Ask the running stage to end at its next checkpoint, with a code of its own; may be
        called in a signal handler, and again."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def _start(self, name: str, folder: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "posttrain.pipeline.job.single_stage", "--", name]
        # Only the stage hears SIGTERM: DVC and its shell would die of it and lose the stage's exit
        # code.
        deaf = ["/bin/sh", "-c", 'trap "" TERM; exec "$@"', "sh"]
        self._process = subprocess.Popen(
            [*deaf, *command],
            cwd=self._root,
            env=_environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a group, which reaches DVC's child
        )
        return self._process


def _environment(temporary: Path) -> dict[str, str]:
    """Unbuffered, or a stage's progress would arrive when it is over. The stage's folder is a
    snapshot."""
    own = {"PATH": path_with_python(), "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", SNAPSHOT: "1"}
    return {**os.environ, **own}


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return (line.rstrip() for line in process.stdout)
