"""What a job runs in its snapshot: one stage through DVC, ending with the stage's own exit code, so that a pool sees whether running again can help.

`python -m posttrain.provenance.job STAGE` in the snapshot's folder. What was run before with the same inputs comes from DVC's run cache;
`--from-run-cache` runs nothing, and exits with `NOT_THERE` where no run had these inputs.
"""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from dvc.repo import Repo
from dvc.stage.cache import RunCacheNotFoundError

from posttrain.exits import Interrupted, exit_codes
from posttrain.provenance.reproduce import Reproducer
from posttrain.provenance.snapshot import find_stage

NOT_THERE = 3


def run(stage: str) -> int:
    """The exit code of the stage's command, 1 where DVC itself failed. SIGTERM and SIGUSR1 reach the stage, which ends at its next checkpoint; DVC
    dies of them at once, so that nobody hears the stage's code, and it counts as interrupted."""
    reproducer, asked = Reproducer(Path()), []

    def pass_on(number: int, _: FrameType | None) -> None:
        asked.append(number)
        reproducer.interrupt()

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, pass_on)
    outcome = reproducer.reproduce(stage, lambda line: print(line, flush=True))
    if outcome.state == "failed":
        is_killed = outcome.exit_code is not None and outcome.exit_code < 0
        return Interrupted.code if is_killed and asked else outcome.exit_code or 1
    with Repo() as repo, repo.lock:
        found = find_stage(repo, stage)
        found.save_deps()
        repo.stage_cache.save(found)  # `dvc repro` leaves out a stage with an output that git keeps
    return 0


def restore(stage: str) -> int:
    """Take the outputs and their entry in `dvc.lock` from the run cache: 0, or `NOT_THERE`."""
    with Repo() as repo, repo.lock:
        found = find_stage(repo, stage)
        try:
            repo.stage_cache.restore(found)
        except RunCacheNotFoundError:
            return NOT_THERE
        found.save()
        found.dump(update_pipeline=False)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser("posttrain.provenance.job", description="Run one stage of this folder.")
    parser.add_argument("stage")
    parser.add_argument("--from-run-cache", action="store_true", help="run nothing")
    given = parser.parse_args()
    with exit_codes():
        sys.exit((restore if given.from_run_cache else run)(given.stage))


if __name__ == "__main__":
    main()
