"""Runs one stage through DVC in a job's snapshot, and ends with the stage's own exit code, so that
a backend sees whether running again can help.

`python -m posttrain.pipeline.job.shared_disk STAGE` in the snapshot's folder. A run with the same
inputs comes from DVC's run cache. `dvc repro` is a process of its own: its output can be followed,
its death harms nobody, and it records what a person's `dvc repro` records. Never two at a time in
one folder: DVC's locks make the second fail.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from posttrain.provenance.environment import TEMPORARY, path_with_python
from posttrain.runtime.exits import as_shell, exit_codes
from posttrain.runtime.redaction import redact_lines
from posttrain.runtime.state import SNAPSHOT
from posttrain.runtime.worker import STOP_SIGNALS


class Reproducer:
    """Runs the stages of one folder, one at a time, and can ask the one that runs to end."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[str] | None = None

    def reproduce(self, name: str, follow: Callable[[str], None]) -> int:
        """Run a stage whose upstream is up to date (`single_stage.py`); `follow` gets each line
        that is not empty, as it is printed and without keys: it becomes a job's log, whichever
        process of the stage printed it.

        Gives the exit code of the stage's command, 128 + n for death by signal n; 1 where DVC
        itself could not run or record it.
        """
        exit_code = 0
        temporary = tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True)
        with temporary as folder, self._start(name, folder) as process:
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

    def _start(self, name: str, temporary: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "posttrain.pipeline.job.single_stage", "--", name]
        # Only the stage gets SIGTERM: DVC and its shell would die of it and lose the exit code.
        ignoring = ["/bin/sh", "-c", 'trap "" TERM; exec "$@"', "sh"]
        # Unbuffered, or a stage's progress would arrive when it is over.
        own = {"PATH": path_with_python(), "TMPDIR": temporary, "PYTHONUNBUFFERED": "1", SNAPSHOT: "1"}
        self._process = subprocess.Popen(
            [*ignoring, *command],
            cwd=self._root,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a group, which reaches DVC's child
        )
        return self._process


def run(stage: str) -> int:
    """The exit code of the stage's command, 1 where DVC itself failed. SIGTERM and SIGUSR1 reach
    the stage, which ends at its next checkpoint."""
    reproducer = Reproducer(Path())
    for number in STOP_SIGNALS:
        signal.signal(number, lambda _number, _frame: reproducer.interrupt())
    return reproducer.reproduce(stage, lambda line: print(line, flush=True))


def main() -> None:
    parser = argparse.ArgumentParser("posttrain.pipeline.job.shared_disk", description="Run one stage of this folder.")
    parser.add_argument("stage")
    given = parser.parse_args()
    with exit_codes():
        sys.exit(run(given.stage))


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return (line.rstrip() for line in process.stdout)


if __name__ == "__main__":
    main()
