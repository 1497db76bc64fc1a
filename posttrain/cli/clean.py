"""`posttrain clean`: shows the disk space of this tree by place, and frees what is asked for."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.cli.command import Commands, add_command
from posttrain.dispatch.records import JobRecords, Owner
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.locks import is_held
from posttrain.runtime.state import JOBS, RUNS, STATE_DIR, TRACES, WANDB
from posttrain.traces.store import trace_location

CHECKPOINTS, EXPERIMENTS = STATE_DIR / "checkpoints", STATE_DIR / "experiments"
WANDB_RUNS = (STATE_DIR / WANDB, Path(WANDB))  # a stage's, and those of `wandb` by hand


@dataclass(frozen=True, slots=True)
class Place:
    """A place on the disk: the files below `paths`, of which `remove` deletes those that nothing
    alive needs."""

    paths: tuple[Path, ...]
    about: str
    remove: Callable[[], None]


def add_clean(commands: Commands) -> None:
    command = add_command(commands, "clean", clean)
    command.add_argument("names", nargs="*", metavar="NAME", help="places to empty; all are shown by default")
    command.add_argument("--yes", dest="is_agreed", action="store_true", help="remove the files")


def clean(names: Sequence[str], is_agreed: bool) -> None:
    """Show the disk space by place. With names and --yes these places are emptied, but for files
    that a living run or job needs."""
    places = _places()
    if unknown := set(names) - places.keys():
        raise ConfigurationError(
            f"{', '.join(sorted(unknown))}: there is no such thing to remove; there are {', '.join(places)}"
        )
    if is_agreed and not names:
        raise ConfigurationError(f"--yes removes what is named, and nothing is: name some of {', '.join(places)}")
    chosen = {name: place for name, place in places.items() if name in names or not names}
    sizes = _sizes(chosen)
    for name, place in chosen.items():
        where = ", ".join(str(path) for path in place.paths if path.exists()) or "-"
        print(f"{name:<12}{_megabytes(sizes[name]):>14}  {where}\n{'':<28}{place.about}")
    if not is_agreed:
        print("nothing is removed without names and --yes: posttrain clean NAME … --yes")
        return
    for name, place in chosen.items():
        place.remove()
        left = _sizes({name: place})[name]
        print(f"{name}: {_megabytes(sizes[name] - left)} removed, {_megabytes(left)} left")


def _places() -> dict[str, Place]:
    from posttrain.dispatch.cleanup import JOB_FOLDERS, KEYS, LOGS, SNAPSHOTS

    jobs = tuple(STATE_DIR / name for name in sorted((SNAPSHOTS, LOGS, KEYS, RUNS, JOB_FOLDERS.parts[0])))
    cache = "DVC's cache and run cache; stays: files of a commit, this tree or a worktree"
    checkpoints = "from which killed stages go on; stays: those of stages that run"
    of_jobs = "trees, folders and logs of flows' jobs; stays: those of living runs and jobs"
    experiments = "worktrees; stays: their branches, and edits that are not committed"
    wandb = "runs of Weights & Biases that may not be synchronized yet"
    return {
        "cache": Place((_cache(),), cache, _collect_garbage),
        "checkpoints": Place((CHECKPOINTS,), checkpoints, _remove_checkpoints),
        "jobs": Place(jobs, of_jobs, _remove_jobs),
        "traces": Place(_trace_files(), "episodes of all stages", _remove_traces),
        "experiments": Place((EXPERIMENTS,), experiments, _remove_experiments),
        "wandb": Place(WANDB_RUNS, wandb, _remove_wandb),
    }


def _trace_files() -> tuple[Path, ...]:
    """The trace store and the damaged one that was set aside, each with its write-ahead log. Named
    one by one: whatever else begins with the store's name may be anyone's."""
    location = trace_location()
    store = STATE_DIR / TRACES if location is None else location.path
    suffixes = ("", "-wal", "-shm", ".aside", ".aside-wal", ".aside-shm")
    return tuple(store.with_name(store.name + suffix) for suffix in suffixes)


def _cache() -> Path:
    """DVC's cache, relative where it is in the tree. Raises ConfigurationError elsewhere."""
    from posttrain.provenance.cache_integrity import cache_folder

    if not Path("dvc.yaml").exists():
        raise ConfigurationError(f"there is no dvc.yaml in {Path.cwd()}: stand in the repository's folder")
    path = cache_folder(Path())
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _sizes(places: dict[str, Place]) -> dict[str, int]:
    """Bytes of each place; a file with several names counts for the first that has it."""
    from posttrain.dispatch.cleanup import disk_bytes

    seen: set[tuple[int, int]] = set()
    return {name: sum(disk_bytes(path, seen) for path in place.paths) for name, place in places.items()}


def _collect_garbage() -> None:
    from posttrain.pipeline.dvc_commands import collect_garbage

    _refuse_while_living()
    collect_garbage(Path())


def _remove_checkpoints() -> None:
    from posttrain.provenance.old_checkpoints import remove_old_checkpoints

    for stage in CHECKPOINTS.iterdir() if CHECKPOINTS.is_dir() else ():
        remove_old_checkpoints(stage, max_gb=0.0, keep=Path())


def _remove_jobs() -> None:
    from posttrain.dispatch.cleanup import Cleaning

    if (STATE_DIR / JOBS).exists():
        with contextlib.closing(Owner(STATE_DIR / RUNS)) as owner:
            Cleaning(STATE_DIR, JobRecords(STATE_DIR / JOBS), owner).clean(max_age_s=0.0)


def _remove_traces() -> None:
    _refuse_while_living()
    for file in _trace_files():
        file.unlink(missing_ok=True)


def _remove_experiments() -> None:
    from posttrain.dispatch.cleanup import KEYS

    for folder in sorted(EXPERIMENTS.iterdir()) if EXPERIMENTS.is_dir() else ():
        if is_held(STATE_DIR / KEYS / f"experiment-{folder.name}"):
            print(f"{folder} stays: it runs")
            continue
        done = subprocess.run(["git", "worktree", "remove", str(folder)], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{folder} stays: {done.stderr.strip()}")


def _remove_wandb() -> None:
    _refuse_while_living()
    for path in WANDB_RUNS:
        shutil.rmtree(path, ignore_errors=True)


def _refuse_while_living() -> None:
    """Raises Interrupted while something of this tree runs that might need the files to remove."""
    if living := list(_living()):
        raise Interrupted(f"{', '.join(living)} lives, and what it needs could go: ask again when it is done")


def _living() -> Iterator[str]:
    import psutil

    from posttrain.provenance.lockfile import pids_of_dvc

    yield from (f"dvc (process {pid})" for pid in sorted(pids_of_dvc(Path())) if psutil.pid_exists(pid))
    yield from (f"stage {lock.stem}" for lock in sorted((STATE_DIR / "locks").glob("*.lock")) if is_held(lock))
    yield from (f"run {lock.name[:8]}" for lock in sorted((STATE_DIR / RUNS).glob("*")) if is_held(lock))
    if (STATE_DIR / JOBS).exists():
        yield from (f"job {record.name}" for record in JobRecords(STATE_DIR / JOBS).not_over())


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"
