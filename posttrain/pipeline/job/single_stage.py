"""Runs `dvc repro` of one stage of a folder, and keeps its result in DVC's run cache; or restores
the result that the run cache has.

`python -m posttrain.pipeline.job.single_stage STAGE`; `--from-run-cache` runs nothing, and exits
with `NOT_THERE` where no run had these inputs. A process of its own, because `dvc repro` is: the
job around it keeps its signals and gets its exit code.
"""

import argparse
import os
import sys
from pathlib import Path

from dvc.cli import main as dvc
from dvc.repo import Repo
from dvc.stage.cache import RunCacheNotFoundError
from dvc_data.hashfile.hash_info import HashInfo

from posttrain.pipeline.snapshot import FROZEN_KEY, find_stage, stage_key, use_verified_runs
from posttrain.provenance.cache_integrity import VERIFIED_COSTS
from posttrain.provenance.costs import read_costs
from posttrain.provenance.fingerprint import cache_key
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.run_records import keep_cost
from posttrain.runtime.exits import Interrupted, exit_codes

NOT_THERE = 3


def run(stage: str) -> int:
    """The exit code of `dvc repro`, which prints the stage's own where it is not 0."""
    code: int = dvc(["repro", "--single-item", "--", stage])
    if code:
        return code
    with Repo() as repo, repo.lock:
        found, entry = find_stage(repo, stage), lock_entries(Path())[stage]
        if FROZEN_KEY.exists() and not FROZEN_KEY.read_text() == cache_key(entry) == stage_key(found):
            raise Interrupted(
                f"inputs of {stage} changed in {Path.cwd()} while DVC recorded them, so its result is not accepted. "
                "A replace over hidden folders does this. Run again"
            )
        verified = use_verified_runs(repo)
        costs = [cost for cost in read_costs(Path()) if cost.stage == stage]
        if costs and verified is not None:
            keep_cost(verified / VERIFIED_COSTS, entry, costs[-1])  # first: a run has its record
        repo.stage_cache.save(found)  # `dvc repro` leaves out a stage with an output that git keeps
    return 0


def restore(stage: str) -> int:
    """Restore the outputs and their entry in `dvc.lock` from the run cache: 0, or `NOT_THERE`. The
    folder is a copy of a tree, so files in the outputs' place are removed, as for a stage that
    runs."""
    with Repo() as repo, repo.lock:
        use_verified_runs(repo)
        found = find_stage(repo, stage)
        found.save_deps()
        for out in found.outs:
            # DVC would take the new inputs with the outputs of dvc.lock for a run of its own.
            out.hash_info = HashInfo()
        try:
            repo.stage_cache.restore(found, dry=True)
            found.remove_outs(force=True)  # DVC keeps what it has no copy of: reports that only git has
            repo.stage_cache.restore(found)
        except RunCacheNotFoundError:
            return NOT_THERE
        found.save()
        found.dump(update_pipeline=False)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser("posttrain.pipeline.job.single_stage", description="Run one stage of a folder.")
    parser.add_argument("stage")
    parser.add_argument("--from-run-cache", action="store_true", help="run nothing")
    parser.add_argument("--folder", type=Path, default=Path(), help="the tree, where it is not this folder")
    given = parser.parse_args()
    os.chdir(given.folder)
    with exit_codes():
        sys.exit((restore if given.from_run_cache else run)(given.stage))


if __name__ == "__main__":
    main()
