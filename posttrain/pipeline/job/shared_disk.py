"""What a job runs in its snapshot: one stage through DVC, ending with the stage's own exit code, so
that a pool sees whether running again can help.

`python -m posttrain.pipeline.job.shared_disk STAGE` in the snapshot's folder. What was run before
with the same inputs comes from DVC's run cache.
"""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from posttrain.pipeline.job.reproduce import Reproducer
from posttrain.runtime.exits import exit_codes


def run(stage: str) -> int:
    """The exit code of the stage's command, 1 where DVC itself failed. SIGTERM and SIGUSR1 reach
    the stage, which ends at its next checkpoint."""
    reproducer = Reproducer(Path())

    def pass_on(_: int, __: FrameType | None) -> None:
        reproducer.interrupt()

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, pass_on)
    return reproducer.reproduce(stage, lambda line: print(line, flush=True))


def main() -> None:
    parser = argparse.ArgumentParser("posttrain.pipeline.job.shared_disk", description="Run one stage of this folder.")
    parser.add_argument("stage")
    given = parser.parse_args()
    with exit_codes():
        sys.exit(run(given.stage))


if __name__ == "__main__":
    main()
