"""`posttrain clean`: shows the disk space of this tree by place, and frees what is asked for."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from posttrain.cli.traces import prune
from posttrain.dispatch.cleanup import JOB_FOLDERS, KEYS, LOGS, SNAPSHOTS, Cleaning, Limits, disk_bytes
from posttrain.dispatch.records import JobRecords
from posttrain.dispatch.submitter_lock import Owner
from posttrain.provenance.lockfile import pids_of_dvc
from posttrain.provenance.old_checkpoints import CheckpointLimits, remove_old_checkpoints
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


def clean(names: Sequence[str], *, is_agreed: bool) -> None:
    """Print what is named, or all, with its size; where the person agrees, what is named goes.

    Raises ConfigurationError of a name that is none, Interrupted where something that lives might
    need it.
    """
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
    state = {STATE_DIR / name for name in (SNAPSHOTS, LOGS, KEYS, RUNS, JOB_FOLDERS.parts[0])}
    jobs = tuple(sorted(state))
    store = _trace_store()
    traces = tuple(sorted(store.parent.glob(f"{store.name}*"))) or (store,)  # with its write-ahead log
    named = {*jobs, *traces, CHECKPOINTS, EXPERIMENTS, STATE_DIR / "prefect", *VLLM, *WANDB_RUNS}
    others = tuple(sorted(path for path in (STATE_DIR.iterdir() if STATE_DIR.is_dir() else ()) if path not in named))
    return [
        Place(
            "cache",
            (_cache(),),
            "DVC's, with the run cache; stays: what a commit, this tree or a worktree names",
            _collect_garbage,
        ),
        Place(
            "checkpoints",
            (CHECKPOINTS,),
            "of stages, to go on from when they are killed; stays: those of stages that run",
            _remove_checkpoints,
        ),
        Place(
            "jobs",
            jobs,
            "trees, folders and logs of flows' jobs; stays: those of runs and jobs that live",
            _remove_jobs,
        ),
        Place(
            "traces",
            traces,
            "episodes of all stages (`posttrain traces prune` removes the oldest alone)",
            _remove_traces,
        ),
        Place(
            "experiments",
            (EXPERIMENTS,),
            "worktrees; stays: their branches, and what is not committed",
            _remove_experiments,
        ),
        Place(
            "vllm",
            VLLM,
            "vLLM's environment and copies of models that it serves; `make serve-vllm` makes both again",
            _remove_vllm,
        ),
        Place("wandb", WANDB_RUNS, "runs of Weights & Biases that may not be synchronized yet", _remove_wandb),
        Place("prefect", (STATE_DIR / "prefect",), "of `make serve`: its database, logs and secret", None),
        Place("records", others, "what the runs of this tree remember: small, and needed", None),
        Place("python", (Path(".venv"),), "this program; `make setup` makes it", None),
    ]


def _trace_store() -> Path:
    location = trace_location()
    return STATE_DIR / TRACES if location is None else location.path


def _cache() -> Path:
    """Relative where it lies in the tree. Raises ConfigurationError where this is none."""
    from posttrain.provenance.cache_integrity import cache_folder

    if not Path("dvc.yaml").exists():
        raise ConfigurationError(f"there is no dvc.yaml in {Path.cwd()}: stand in the repository's folder")
    path = cache_folder(Path())
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _sizes(places: Sequence[Place]) -> dict[str, int]:
    """In bytes; what has several names (a link into DVC's cache) counts for the first of `places`
    that has it."""
    seen: set[tuple[int, int]] = set()
    return {place.name: sum(disk_bytes(path, seen) for path in place.paths) for place in places}


def _collect_garbage() -> None:
    from posttrain.pipeline.dvc_commands import collect_garbage

    _refuse_while_living()
    collect_garbage(Path())


def _remove_checkpoints() -> None:
    for stage in CHECKPOINTS.iterdir() if CHECKPOINTS.is_dir() else ():
        remove_old_checkpoints(stage, CheckpointLimits(0.0, 0.0), keep=Path())


def _remove_jobs() -> None:
    if (STATE_DIR / JOBS).exists():
        with contextlib.closing(Owner(STATE_DIR / RUNS)) as owner:
            Cleaning(STATE_DIR, JobRecords(STATE_DIR / JOBS), Limits(0.0, 0), owner).clean(at_most=None)


def _remove_traces() -> None:
    if _trace_store().exists():
        _refuse_while_living()
        prune(max_gb=None, keep_runs=0)


def _remove_experiments() -> None:
    for folder in sorted(EXPERIMENTS.iterdir()) if EXPERIMENTS.is_dir() else ():
        if is_held(STATE_DIR / KEYS / f"experiment-{folder.name}"):
            print(f"{folder} stays: it runs")
            continue
        done = subprocess.run(["git", "worktree", "remove", str(folder)], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{folder} stays: {done.stderr.strip()}")


def _remove_vllm() -> None:
    if users := [
        process.pid for process in psutil.process_iter(["cmdline"]) if _runs_from(process, VLLM[0].absolute())
    ]:
        raise Interrupted(f"{VLLM[0]} is in use by process {', '.join(map(str, users))}: end it, and ask again")
    for path in VLLM:
        shutil.rmtree(path, ignore_errors=True)


def _remove_wandb() -> None:
    for path in filter(Path.is_dir, WANDB_RUNS):
        _refuse_while_living()
        shutil.rmtree(path)


def _runs_from(process: psutil.Process, folder: Path) -> bool:
    return any(argument.startswith(f"{folder}{os.sep}") for argument in process.info["cmdline"] or ())


def _refuse_while_living() -> None:
    """Raises Interrupted while something of this tree runs that might need what is about to go."""
    if living := list(_living()):
        raise Interrupted(f"{', '.join(living)} lives, and what it needs could go: ask again when it is done")


def _living() -> Iterator[str]:
    yield from (f"dvc (process {pid})" for pid in sorted(pids_of_dvc(Path())) if psutil.pid_exists(pid))
    yield from (f"stage {lock.stem}" for lock in sorted((STATE_DIR / "locks").glob("*.lock")) if is_held(lock))
    yield from (f"run {lock.name[:8]}" for lock in sorted((STATE_DIR / RUNS).glob("*")) if is_held(lock))
    if (STATE_DIR / JOBS).exists():
        yield from (f"job {record.name}" for record in JobRecords(STATE_DIR / JOBS).not_over())


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"
