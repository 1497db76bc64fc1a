"""Runs one stage through DVC in a job's snapshot, and ends with the stage's own exit code, so that
a backend sees whether running again can help.

`python -m posttrain.pipeline.job.shared_disk STAGE` in the snapshot's folder. A run with the same
inputs comes from DVC's run cache. On all nodes but the first this is the stage's follower
(`posttrain/provenance/follower.py`). `dvc repro` is a process of its own: its output can be
followed, its death harms nobody, and it records what a person's `dvc repro` records. Never two at a
time in one folder: DVC's locks make the second fail.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from posttrain.dispatch.backend import NODE
from posttrain.provenance.environment import TEMPORARY, path_with_python
from posttrain.provenance.follower import follow
from posttrain.runtime.exits import as_shell, exit_codes
from posttrain.runtime.redaction import redact_lines
from posttrain.runtime.state import SNAPSHOT
from posttrain.runtime.worker import STOP_SIGNALS


def run(stage: str, root: Path, follow: Callable[[str], None]) -> int:
    """Run a stage whose upstream is up to date (`single_stage.py`); `follow` gets each line that is
    not empty, as it is printed and without keys: it becomes a job's log, whichever process of the
    stage printed it. SIGTERM and SIGUSR1 reach the stage, which ends at its next checkpoint.

    Gives the exit code of the stage's command, 128 + n for death by signal n; 1 where DVC itself
    could not run or record it.
    """
    exit_code, started = 0, list[subprocess.Popen[str]]()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for process in started:
            with contextlib.suppress(ProcessLookupError):  # it is over
                os.killpg(process.pid, signal.SIGTERM)

    before = {number: signal.signal(number, interrupt) for number in STOP_SIGNALS}
    try:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True) as folder:
            started.append(process := _start(stage, root, folder))
            assert process.stdout is not None
            for line in filter(None, redact_lines(line.rstrip() for line in process.stdout)):
                follow(line)
                if found := re.search(r"failed to run: .*, exited with (-?\d+)$", line):
                    exit_code = int(found.group(1))
            code = process.wait()
            started.clear()  # its pid may be another's now
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code < 0:
        return as_shell(code)
    return as_shell(exit_code) or 1 if code else 0


def _start(name: str, root: Path, temporary: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "posttrain.pipeline.job.single_stage", "--", name]
    # Only the stage gets SIGTERM: DVC and its shell would die of it and lose the exit code.
    ignoring = ["/bin/sh", "-c", 'trap "" TERM; exec "$@"', "sh"]
    # Unbuffered, or a stage's progress would arrive when it is over.
    own = {"PATH": path_with_python(), "TMPDIR": temporary, "PYTHONUNBUFFERED": "1", SNAPSHOT: "1"}
    return subprocess.Popen(
        [*ignoring, *command],
        cwd=root,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # a group, which reaches DVC's child
    )


def main() -> None:
    parser = argparse.ArgumentParser("posttrain.pipeline.job.shared_disk", description="Run one stage of this folder.")
    parser.add_argument("stage")
    given = parser.parse_args()
    with exit_codes():
        if os.environ.get(NODE, "0") != "0":
            sys.exit(follow())
        sys.exit(run(given.stage, Path(), lambda line: print(line, flush=True)))


if __name__ == "__main__":
    main()
