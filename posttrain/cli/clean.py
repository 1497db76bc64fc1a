"""`posttrain clean`: shows the disk space of this tree by place, and frees what is asked for."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.cli.command import Commands, add_command
from posttrain.cli.traces import prune
from posttrain.dispatch.records import JobRecords, Owner
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.locks import is_held
from posttrain.runtime.state import JOBS, RUNS, STATE_DIR, TRACES, WANDB
from posttrain.traces.location import trace_location

VLLM = (Path("infra/vllm/.venv"), STATE_DIR / "vllm")
CHECKPOINTS, EXPERIMENTS = STATE_DIR / "checkpoints", STATE_DIR / "experiments"
WANDB_RUNS = (STATE_DIR / WANDB, Path(WANDB))  # a stage's, and those of `wandb` by hand


@dataclass(frozen=True, slots=True)
class Place:
    """A place on the disk: the files below `paths`. `remove` deletes some of them; None where this
    command never does."""

    name: str
    paths: tuple[Path, ...]
    about: str
    remove: Callable[[], None] | None


def add_clean(commands: Commands) -> None:
    """The command `clean`."""
    command = add_command(commands, "clean", clean)
    command.add_argument("names", nargs="*", metavar="NAME", help="places to empty; all are shown by default")
    command.add_argument("--yes", dest="is_agreed", action="store_true", help="remove the files")


def clean(names: Sequence[str], is_agreed: bool) -> None:
    """Show the disk space by place. With names and --yes these places are emptied, but for files
    that a living run or job needs."""
    places = _places()
    removable = {place.name: place for place in places if place.remove}
    if unknown := set(names) - removable.keys():
        raise ConfigurationError(
            f"{', '.join(sorted(unknown))}: there is no such thing to remove; there are {', '.join(removable)}"
        )
    if is_agreed and not names:
        raise ConfigurationError(f"--yes removes what is named, and nothing is: name some of {', '.join(removable)}")
    chosen = [place for place in places if place.name in names or not names]
    sizes = _sizes(chosen)
    for place in chosen:
        where = ", ".join(str(path) for path in place.paths if path.exists()) or "-"
        print(f"{place.name:<12}{_megabytes(sizes[place.name]):>14}  {where}\n{'':<28}{place.about}")
    if not names:
        print(f"{'sum':<12}{_megabytes(sum(sizes.values())):>14}")
        print(f"posttrain clean NAME … --yes removes; NAME is one of {', '.join(removable)}")
    elif not is_agreed:
        print("nothing is removed without --yes")
    else:
        for place in chosen:
            assert place.remove is not None
            place.remove()
            left = _sizes([place])[place.name]
            print(f"{place.name}: {_megabytes(sizes[place.name] - left)} removed, {_megabytes(left)} left")


def _places() -> list[Place]:
    from posttrain.dispatch.cleanup import JOB_FOLDERS, KEYS, LOGS, SNAPSHOTS

    state = {STATE_DIR / name for name in (SNAPSHOTS, LOGS, KEYS, RUNS, JOB_FOLDERS.parts[0])}
    jobs = tuple(sorted(state))
    store = _trace_store()
    traces = tuple(sorted(store.parent.glob(f"{store.name}*"))) or (store,)  # with its write-ahead log
    named = {*jobs, *traces, CHECKPOINTS, EXPERIMENTS, STATE_DIR / "prefect", *VLLM, *WANDB_RUNS}
    others = tuple(sorted(path for path in (STATE_DIR.iterdir() if STATE_DIR.is_dir() else ()) if path not in named))
    places = {
        "cache": ((_cache(),), "DVC's cache and run cache; stays: files of a commit, this tree or a worktree"),
        "checkpoints": ((CHECKPOINTS,), "from which killed stages go on; stays: those of stages that run"),
        "jobs": (jobs, "trees, folders and logs of flows' jobs; stays: those of living runs and jobs"),
        "traces": (traces, "episodes of all stages (`posttrain traces prune` removes the oldest alone)"),
        "experiments": ((EXPERIMENTS,), "worktrees; stays: their branches, and edits that are not committed"),
        "vllm": (VLLM, "vLLM's environment and copies of served models; `make serve-vllm` makes both again"),
        "wandb": (WANDB_RUNS, "runs of Weights & Biases that may not be synchronized yet"),
        "prefect": ((STATE_DIR / "prefect",), "of `make serve`: its database, logs and secret"),
        "records": (others, "small records of this tree's runs, which are needed"),
        "python": ((Path(".venv"),), "this program; `make setup` makes it"),
    }
    return [Place(name, paths, about, REMOVERS.get(name)) for name, (paths, about) in places.items()]


def _trace_store() -> Path:
    location = trace_location()
    return STATE_DIR / TRACES if location is None else location.path


def _cache() -> Path:
    """Folder of DVC's cache, relative where it lies in the tree. Raises ConfigurationError outside
    of a tree."""
    from posttrain.provenance.cache_integrity import cache_folder

    if not Path("dvc.yaml").exists():
        raise ConfigurationError(f"there is no dvc.yaml in {Path.cwd()}: stand in the repository's folder")
    path = cache_folder(Path())
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _sizes(places: Sequence[Place]) -> dict[str, int]:
    """Bytes of each place. A file with several names (a link into DVC's cache) counts for the first
    of `places` that has it."""
    from posttrain.dispatch.cleanup import disk_bytes

    seen: set[tuple[int, int]] = set()
    return {place.name: sum(disk_bytes(path, seen) for path in place.paths) for place in places}


def _collect_garbage() -> None:
    from posttrain.pipeline.dvc_commands import collect_garbage

    _refuse_while_living()
    collect_garbage(Path())


def _remove_checkpoints() -> None:
    from posttrain.provenance.old_checkpoints import CheckpointLimits, remove_old_checkpoints

    for stage in CHECKPOINTS.iterdir() if CHECKPOINTS.is_dir() else ():
        remove_old_checkpoints(stage, CheckpointLimits(0.0, 0.0), keep=Path())


def _remove_jobs() -> None:
    from posttrain.dispatch.cleanup import Cleaning

    if (STATE_DIR / JOBS).exists():
        with contextlib.closing(Owner(STATE_DIR / RUNS)) as owner:
            Cleaning(STATE_DIR, JobRecords(STATE_DIR / JOBS), owner).clean(max_age_s=0.0)


def _remove_traces() -> None:
    if _trace_store().exists():
        _refuse_while_living()
        prune(max_gb=0.0)


def _remove_experiments() -> None:
    from posttrain.dispatch.cleanup import KEYS

    for folder in sorted(EXPERIMENTS.iterdir()) if EXPERIMENTS.is_dir() else ():
        if is_held(STATE_DIR / KEYS / f"experiment-{folder.name}"):
            print(f"{folder} stays: it runs")
            continue
        done = subprocess.run(["git", "worktree", "remove", str(folder)], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{folder} stays: {done.stderr.strip()}")


def _remove_vllm() -> None:
    import psutil

    folder = f"{VLLM[0].absolute()}{os.sep}"
    lines = {process.pid: process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"])}
    if users := [pid for pid, words in lines.items() if any(word.startswith(folder) for word in words)]:
        raise Interrupted(f"{VLLM[0]} is in use by process {', '.join(map(str, users))}: end it, and ask again")
    for path in VLLM:
        shutil.rmtree(path, ignore_errors=True)


def _remove_wandb() -> None:
    for path in filter(Path.is_dir, WANDB_RUNS):
        _refuse_while_living()
        shutil.rmtree(path)


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


REMOVERS = {
    "cache": _collect_garbage,
    "checkpoints": _remove_checkpoints,
    "jobs": _remove_jobs,
    "traces": _remove_traces,
    "experiments": _remove_experiments,
    "vllm": _remove_vllm,
    "wandb": _remove_wandb,
}
