"""The frame around every stage: what it read, that nothing of it changed meanwhile, where its checkpoints live, and how it ends.

DVC hashes a stage's deps and params *after* its command, so an edit made while it ran would bind the new values to the old output. The frame takes
the fingerprint before the work and again after it, and fails the stage where the two differ. The same fingerprint names the checkpoint folder, so
that a run never resumes from another code, data or configuration; DVC deletes a stage's outs before it runs again, so checkpoints live outside.
"""

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from posttrain.exits import ConfigurationError, Interrupted, StageError
from posttrain.params import ImportSource, Params, load_params
from posttrain.provenance.fingerprint import Fingerprint, StageInputs, changes, read_stage_inputs, take_fingerprint
from posttrain.provenance.launch import LAUNCH, asked_launch, run_launched
from posttrain.provenance.rank import CHECKPOINTS, RANKS, STOP_SIGNALS, run_as_rank
from posttrain.provenance.threads import choose_num_threads, limit_threads
from posttrain.state import STATE_DIR

NUM_RUNS_KEPT = 3  # with their checkpoints: an interrupted run of the values before this edit can still be gone back to


class ProgressClock:
    """When the last line was printed and when the first was asked for."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._printed_s = 0.0
        self._first_done: int | None = None

    def line(self, done: int, total: int) -> str | None:
        now_s = time.monotonic()
        if self._first_done is None:
            self._first_done, self._started_s = done, now_s
        if done < total and now_s - self._printed_s < 1.0:
            return None
        self._printed_s = now_s
        rate = (done - self._first_done) / max(now_s - self._started_s, 1e-9)
        left = f"{(total - done) / rate:.0f} s left" if rate > 0 else "…"
        return f"{done}/{total}  {rate:.1f}/s  {left}"


@dataclass(frozen=True, slots=True)
class StageRun:
    """What a stage's function gets. `item` is the matrix item (`sft` in `evaluate@sft`), empty where the stage has none. `is_first`: of several
    processes this is the one that writes the outputs."""

    name: str
    item: str
    params: Params
    checkpoint_dir: Path
    is_first: bool = True
    clock: ProgressClock = field(default_factory=ProgressClock)

    @property
    def full_name(self) -> str:
        """`evaluate@sft`, or the stage alone where it has no items."""
        return _full_name(self.name, self.item)

    @property
    def key(self) -> str:
        """Names the code, data and knobs: 16 hex digits of their fingerprint."""
        return self.checkpoint_dir.name

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Print `stage  done/total  rate  time left  note`, once a second at most and always at the end."""
        if line := self.clock.line(done, total):
            print(f"[{self.full_name}] {line}  {note}".rstrip(), file=sys.stderr, flush=True)


def run_stage(function: Callable[[StageRun], None], *, is_launchable: bool = False) -> None:
    """Run a stage as a program and exit with its code: 0, 78 wrong configuration, 65 bad data, 75 interrupted and resumable, 1 our bug.

    The stage is named as the function; one command-line argument, if any, is the matrix item. Where it `is_launchable` and `POSTTRAIN_LAUNCH` is set,
    the function runs in several processes below this one (`launch.py`).
    """
    _make_deterministic()
    item = sys.argv[1] if len(sys.argv) > 1 else ""
    if RANKS in os.environ:
        run_as_rank(lambda: _run_rank(function, item), _end_of)
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    try:
        _run(function, item, is_launchable=is_launchable)
    except (StageError, OSError) as error:
        end = _end_of(error)
        if end is None:
            raise
        code, message = end
        sys.exit(_fail(function.__name__, item, message, code))


def _stop(number: int, _: object) -> NoReturn:
    """Where nothing listens for a signal to stop: a training does, and ends with a checkpoint."""
    raise Interrupted(f"asked to stop by {signal.Signals(number).name}: what is done is kept, run again to go on")


def _end_of(error: BaseException) -> tuple[int, str] | None:
    """Exit code and message of an error with a meaning, None of a bug."""
    if isinstance(error, StageError):
        return error.code, str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = error.filename or "an output"
        return Interrupted.code, f"no space left on the disk while writing {where}; the last good checkpoint is kept: free some space and run again"
    return None


def _run_rank(function: Callable[[StageRun], None], item: str) -> None:
    """As one of the processes that the frame has started: it holds the locks and looks after the inputs."""
    limit_threads(choose_num_threads())
    function(StageRun(function.__name__, item, load_params(), Path(os.environ[CHECKPOINTS]), is_first=os.environ["RANK"] == "0"))


def _run(function: Callable[[StageRun], None], item: str, *, is_launchable: bool) -> None:
    name = function.__name__
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigurationError(
            f"{name} was started by accelerate or torchrun itself, so every process would be a run of its own. Set {LAUNCH} to a file of "
            f"infra/accelerate/ and run python -m stages.{name}: it starts the processes"
        )
    launch = asked_launch(os.environ) if is_launchable else None
    num_threads = choose_num_threads()
    limit_threads(num_threads)
    params = load_params()
    inputs = read_stage_inputs(Path("dvc.yaml"), name, item)
    _refuse_undeclared(name, inputs, params)
    with contextlib.ExitStack() as held:
        held.enter_context(_only_one(STATE_DIR / "locks" / f"{_full_name(name, item)}.lock"))
        before = take_fingerprint(inputs)
        checkpoint_dir = STATE_DIR / "checkpoints" / _full_name(name, item) / before.digest[:16]
        held.enter_context(_only_one(checkpoint_dir / "lock"))  # snapshots of a tree have locks of their own and share its checkpoints
        started_s = time.monotonic()
        started = f"{num_threads} thread{'s' if num_threads > 1 else ''}" if launch is None else f"{launch.num_processes} processes ({launch.config})"
        print(f"[{_full_name(name, item)}] started with {started}", file=sys.stderr, flush=True)
        if launch is None:
            function(StageRun(name, item, params, checkpoint_dir))
            peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        else:
            ranks = STATE_DIR / "ranks" / _full_name(name, item)
            peak_mib = run_launched(launch, ranks, checkpoint_dir, num_threads=num_threads)
        _refuse_if_changed(inputs, before)
        _record_cost(_full_name(name, item), time.monotonic() - started_s, peak_mib)
        _forget_old_runs(checkpoint_dir.parent)


def _refuse_undeclared(name: str, inputs: StageInputs, params: Params) -> None:
    """A file that a knob names is an input like the others: DVC must see its edits."""
    for knob, path in _files_named(name, inputs, params):
        if not inputs.covers(path):
            raise ConfigurationError(
                f"{knob} leads to {path}, which is not among the deps of {name} in dvc.yaml: an edit of it would run nothing again and the result "
                "would pass for current. Add it there"
            )


def _files_named(name: str, inputs: StageInputs, params: Params) -> Iterator[tuple[str, Path]]:
    """Knobs and the files they name: trajectories to import, and the repository's own modules with a world or a score. What pip installed is
    locked."""
    source = params.generate_data.source
    if name == "generate_data" and isinstance(source, ImportSource):
        yield "generate_data.source.path", Path(source.path)
    named = [("world.type", params.world.type)] if "world" in inputs.params else []
    named += [("reward.extra", extra.name) for extra in params.reward.extra] if "reward" in inputs.params else []
    for knob, name in named:
        module, colon, _ = name.partition(":")
        origin = _origin(module) if colon else None
        if origin is not None and origin.is_relative_to(Path.cwd()) and not origin.is_relative_to(sys.prefix):
            yield f"{knob}: {name}", origin.relative_to(Path.cwd())


def _origin(module: str) -> Path | None:
    """Where a module lies, without running it; None where there is none, which who loads it will say in its own words."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None


def _refuse_if_changed(inputs: StageInputs, before: Fingerprint) -> None:
    if changed := changes(before, take_fingerprint(inputs, earlier=before)):
        raise Interrupted(
            f"{', '.join(changed)} changed while the stage ran. Its output belongs to the old values, so it is not accepted under the new ones. "
            "Run `dvc repro` again (or take the edit back first)"
        )


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold a lock: a killed `dvc` leaves its trainer alive, and two would write the same files. The kernel frees it on any death."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise Interrupted(
                f"process {lock.read().strip() or '?'} is still running this stage, left over from a killed `dvc` or a lost job; two would overwrite "
                "each other's files. Wait for it or kill it, then run again: the work done is kept"
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _make_deterministic() -> None:
    """Set before torch is imported for the first time by the stage's own work; harmless where it is not used."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _forget_old_runs(stage_dir: Path) -> None:
    """Of the stage's checkpoint folders, one for each fingerprint, keep those worked in last; the finished outputs of all are in DVC's cache."""
    if stage_dir.is_dir():
        for folder in sorted(stage_dir.iterdir(), key=lambda folder: folder.stat().st_mtime)[:-NUM_RUNS_KEPT]:
            shutil.rmtree(folder)


def _record_cost(name: str, seconds: float, peak_mib: float) -> None:
    """Append seconds and peak memory for `make bench`; outside every output, because no two runs agree on them."""
    with (STATE_DIR / "costs.jsonl").open("a", encoding="utf-8") as costs:
        costs.write(json.dumps({"stage": name, "seconds": round(seconds, 2), "peak_mib": round(peak_mib)}) + "\n")
    print(f"[{name}] done in {seconds:.1f} s, peak {peak_mib:.0f} MiB", file=sys.stderr, flush=True)


def _fail(name: str, item: str, message: str, code: int) -> int:
    kind = {ConfigurationError.code: "wrong configuration", Interrupted.code: "interrupted"}.get(code, "bad data")
    print(f"[{_full_name(name, item)}] {kind}: {message}", file=sys.stderr, flush=True)
    return code


def _full_name(name: str, item: str) -> str:
    return f"{name}@{item}" if item else name
