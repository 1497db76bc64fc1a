"""Sends a job's snapshot to S3 before it starts, and collects its results when it is over, where
submitter and job share no disk.

`python -m posttrain.pipeline.remote.submit prepare|collect OPTIONS -- STAGE` in the
snapshot's folder. A process of its own, as all of DVC's work: jobs of several stages are sent and
taken in beside each other, and DVC is not made for threads.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo

from posttrain.pipeline.job.single_stage import NOT_THERE
from posttrain.pipeline.remote.archive import pack, unpack
from posttrain.pipeline.remote.cache import NAME, config_section, fetch_result, push_inputs, refuse_without_run_cache
from posttrain.pipeline.remote.names import RECORDS, JobFolder, add_options
from posttrain.pipeline.remote.object_store import ObjectStore
from posttrain.pipeline.snapshot import CACHE_OF_DVC, find_stage, use_verified_runs
from posttrain.provenance.costs import COSTS, append_cost, read_cost_lines
from posttrain.runtime.exits import ConfigurationError, exit_codes
from posttrain.runtime.state import STATE_DIR, WANDB

_OWN = (STATE_DIR, CACHE_OF_DVC, Path(".dvc/tmp"), Path(".dvc/cache"))  # of this machine


def prepare(stage: str, store: ObjectStore, place: JobFolder, attempt: int) -> int:
    """Push the inputs that lie in DVC's cache, and the rest of the tree as one object."""
    with Repo() as repo, repo.lock:
        found = find_stage(repo, stage)
        refuse_without_run_cache(found)
        pushed = push_inputs(repo, found, store)

    def is_left_out(path: Path) -> bool:
        return path in _OWN or path in pushed or path.name == "__pycache__"

    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "snapshot.tar.gz"
        pack(Path(), archive, is_left_out=is_left_out)
        store.delete(place.claim(attempt))  # of records that were lost, and their numbers given again
        store.put(archive, place.snapshot(attempt))
    return 0


def collect(stage: str, store: ObjectStore, place: JobFolder, *, is_over: bool) -> int:
    """Collect traces, W&B's runs and costs of all attempts into the state folder, and the result
    into DVC's cache and run cache: 0, or `NOT_THERE` where there is none.

    Then delete what is not needed there any more: all of the job where its result is here, and
    where it is over without one, all but checkpoints.
    """
    for found in store.list(place.folder("traces")):
        store.get(found.name, STATE_DIR / "traces" / Path(found.name).parent.name / Path(found.name).name)
    for found in store.list(place.folder("wandb")):
        with tempfile.TemporaryDirectory() as folder:
            archive, runs = Path(folder) / "wandb.tar.gz", Path(folder) / WANDB
            store.get(found.name, archive)
            unpack(archive, runs)
            shutil.copytree(runs, STATE_DIR / WANDB, dirs_exist_ok=True)
    for found in store.list(place.folder("costs")):
        with tempfile.TemporaryDirectory() as folder:
            store.get(found.name, Path(folder) / COSTS.name)
            for cost in read_cost_lines(Path(folder) / COSTS.name):
                append_cost(cost)
    with Repo() as repo, repo.lock:
        use_verified_runs(repo)
        is_there = fetch_result(repo, find_stage(repo, stage), store)
    for prefix in (place.prefix,) if is_there else map(place.folder, RECORDS) if is_over else ():
        store.delete(prefix)
    return 0 if is_there else NOT_THERE


def main() -> None:
    parser = argparse.ArgumentParser(
        "posttrain.pipeline.remote.submit", description="Send a stage's snapshot to S3, take its result from there."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "collect"):
        command = commands.add_parser(name)
        add_options(command)
        command.add_argument("--folder", type=Path, default=Path(), help="the tree, where it is not this folder")
        command.add_argument("stage")
    commands.choices["prepare"].add_argument("--attempt", type=int, required=True)
    commands.choices["collect"].add_argument("--is-over", action="store_true", help="no job runs any more")
    given = parser.parse_args()
    os.chdir(given.folder)
    with exit_codes():
        store, place = ObjectStore(given.remote), given.place
        store.patiently(store.check)
        _name_remote(store)
        try:
            if given.command == "prepare":
                sys.exit(prepare(given.stage, store, place, given.attempt))
            sys.exit(collect(given.stage, store, place, is_over=given.is_over))
        except DvcException as error:
            raise ConfigurationError(
                f"{given.stage} cannot go through {store.remote.url}: {error}; `dvc status` says more"
            ) from error


def _name_remote(store: ObjectStore) -> None:
    config = CACHE_OF_DVC.read_text(encoding="utf-8")
    if NAME not in config:
        CACHE_OF_DVC.write_text(config + config_section(store.remote), encoding="utf-8")


if __name__ == "__main__":
    main()
