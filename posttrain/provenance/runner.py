"""Runs a stage's function in its own process: reads the knobs, calls the function, and exits with
the code of its end.

`python -m posttrain.provenance.run_stage` starts it in a frozen copy of its inputs, and in a
snapshot in place. A person may run `python -m stages.NAME` by hand, with a debugger: then it works
in the tree itself, and fails where an input was edited meanwhile. The cache key of the inputs names
the checkpoint folder, so a run never resumes from another code, data or configuration; DVC deletes
a stage's outs before it runs again, so checkpoints live outside.
"""

import errno
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from posttrain.config.params import Params, load_params
from posttrain.provenance.cache_integrity import refuse_damaged
from posttrain.provenance.code_version import wandb_variables
from posttrain.provenance.costs import COPIED_COSTS, COSTS, Attempts, append_cost, measured_cost
from posttrain.provenance.environment import KEY, is_snapshot, refuse_foreign_modules
from posttrain.provenance.eta import Progress
from posttrain.provenance.fingerprint import StageInputs, read_stage_inputs, refuse_if_changed, take_fingerprint
from posttrain.provenance.frozen_copy import refuse_if_touched, snapshot_files
from posttrain.provenance.launcher import LAUNCH, asked_launch, run_launched
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.old_checkpoints import max_checkpoints_gb, remove_old_checkpoints
from posttrain.provenance.own_servers import own_servers
from posttrain.provenance.tree_locks import checkpoint_folder, full_name, has_work, lock_checkpoints, lock_stage
from posttrain.provenance.undeclared_deps import undeclared
from posttrain.runtime.exits import ConfigurationError, Interrupted, StageError, say_end
from posttrain.runtime.redaction import redact_uncaught
from posttrain.runtime.state import STATE_DIR
from posttrain.runtime.threads import choose_num_threads, limit_threads
from posttrain.runtime.worker import CHECKPOINTS, STOP_SIGNALS, WORKERS, run_worker


@dataclass(frozen=True, slots=True)
class StageRun:
    """Argument of a stage's function. `item` is the matrix item (`sft` in `evaluate@sft`), empty
    where the stage has none. `is_first`: of several workers this is the one that writes the
    outputs."""

    name: str
    item: str
    params: Params
    checkpoint_dir: Path
    is_first: bool = True
    line: Progress = field(default_factory=Progress)
    attempts: Attempts | None = None

    @property
    def full_name(self) -> str:
        """`evaluate@sft`, or the stage alone where it has no items."""
        return full_name(self.name, self.item)

    @property
    def key(self) -> str:
        """16 hex digits of the cache key of code, data and knobs."""
        return self.checkpoint_dir.name

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Print how far the stage is, and record that it lives."""
        if self.attempts is not None:
            self.attempts.update(done, total)
        self.line.show(self.full_name, done, total, note)


def run_stage(function: Callable[[StageRun], None], *, is_launchable: bool = False) -> None:
    """Run a stage, named as the function, and exit with its code: 0, 78 wrong configuration, 65 bad
    data, 75 interrupted and resumable, 1 our bug. One that `is_launchable` may run in several
    workers (`launcher.py`)."""
    redact_uncaught()
    gc.freeze()  # what is imported lives as long as the process: trainers collect garbage every few steps
    gc.enable()
    # Before the stage's own work imports torch; harmless where that is not used.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the sums of cuBLAS in one order
    item = sys.argv[1] if len(sys.argv) > 1 else ""
    if WORKERS in os.environ:
        run_worker(lambda: _run_as_worker(function, item), _end_of)
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    try:
        _run(function, item, is_launchable=is_launchable)
    except (StageError, OSError) as error:
        end = _end_of(error)
        if end is None:
            raise
        code, message = end
        sys.exit(say_end(full_name(function.__name__, item), message, code))


def _stop(number: int, _: object) -> NoReturn:
    """End at once; a training has a handler of its own, and ends with a checkpoint."""
    raise Interrupted(f"asked to stop by {signal.Signals(number).name}: what is done is kept, run again to go on")


def _end_of(error: BaseException) -> tuple[int, str] | None:
    """Exit code and message of an error with a meaning, None of a bug."""
    if isinstance(error, StageError):
        return error.code, str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = error.filename or "an output"
        return (
            Interrupted.code,
            f"no space left on the disk while writing {where}; the last good checkpoint is kept: "
            "free some space and run again",
        )
    return None


def _run_as_worker(function: Callable[[StageRun], None], item: str) -> None:
    """Call the function; the runner above has the locks and compares the inputs."""
    limit_threads(choose_num_threads())
    checkpoint_dir, is_first = Path(os.environ[CHECKPOINTS]), os.environ["RANK"] == "0"
    attempts = Attempts(checkpoint_dir, is_new=False) if is_first else None
    run = StageRun(function.__name__, item, load_params(), checkpoint_dir, is_first=is_first, attempts=attempts)
    _call(function, run)


def _run(function: Callable[[StageRun], None], item: str, *, is_launchable: bool) -> None:
    name, root = function.__name__, Path()
    stage = full_name(name, item)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigurationError(
            f"{name} was started by accelerate or torchrun itself, so every process would be a run of its own. "
            f"Set {LAUNCH} to a file of infra/accelerate/ and run python -m posttrain.provenance.run_stage {name}: "
            "it starts the processes"
        )
    if KEY in os.environ:  # frozen and locked by run_stage.py, the process above
        refuse_foreign_modules(sys.modules, Path.cwd())
        inputs = read_stage_inputs(Path("dvc.yaml"), name, item)
        checkpoint_dir = checkpoint_folder(root, stage, os.environ[KEY])
        _compute(function, item, inputs, checkpoint_dir, is_launchable=is_launchable)
        refuse_foreign_modules(sys.modules, Path.cwd())
        return
    if "DVC_STAGE" in os.environ and not is_snapshot(os.environ):
        raise ConfigurationError(
            f"dvc.yaml runs {name} in the tree itself, where an edit could be recorded as what it read; its cmd is "
            f"to be `python -m posttrain.provenance.run_stage {name}{' ' * bool(item)}{item}`"
        )
    inputs = read_stage_inputs(Path("dvc.yaml"), name, item)
    with lock_stage(root, stage):
        before = take_fingerprint(inputs)
        if is_snapshot(os.environ):
            refuse_foreign_modules(sys.modules, Path.cwd())
            refuse_damaged(lock_entries(root), before, root)
            files = snapshot_files(root)
        if os.environ.get("WANDB_MODE") != "disabled":
            os.environ.update(wandb_variables(root))
        with lock_checkpoints(root, stage, before.key) as checkpoint_dir:
            _compute(function, item, inputs, checkpoint_dir, is_launchable=is_launchable)
            refuse_if_changed(before, root)
            if is_snapshot(os.environ):
                refuse_if_touched(root, files, inputs.outs)
                refuse_foreign_modules(sys.modules, Path.cwd())


def _compute(
    function: Callable[[StageRun], None], item: str, inputs: StageInputs, checkpoint_dir: Path, *, is_launchable: bool
) -> None:
    name = full_name(function.__name__, item)
    launch = asked_launch(os.environ) if is_launchable else None
    max_gb, num_threads = max_checkpoints_gb(), choose_num_threads()
    limit_threads(num_threads)
    params = load_params()
    # `check_params` has looked at all stages, but cannot have `dvc.yaml` among its deps to look
    # again.
    if lines := [line for _, line in undeclared({function.__name__: inputs}, params)]:
        raise ConfigurationError("\n".join(lines))
    started_s, is_resumed = time.monotonic(), has_work(checkpoint_dir)
    attempts = Attempts(checkpoint_dir)
    threads = f"{num_threads} thread{'s' if num_threads > 1 else ''}"
    by = threads if launch is None else f"{launch.num_workers} processes ({launch.config})"
    by += f" on {launch.num_nodes} nodes" if launch is not None and launch.num_nodes > 1 else ""
    print(f"[{name}] started with {by}", file=sys.stderr, flush=True)
    with own_servers(function.__name__, item, params):
        if launch is None:
            _call(function, StageRun(function.__name__, item, params, checkpoint_dir, attempts=attempts))
            peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        else:
            peak_mib = run_launched(launch, STATE_DIR / "workers" / name, checkpoint_dir, num_threads=num_threads)
    seconds = time.monotonic() - started_s
    cost = measured_cost(
        name, seconds=seconds, peak_mib=peak_mib, is_resumed=is_resumed, num_threads=num_threads, attempts=attempts
    )
    append_cost(cost, COPIED_COSTS if KEY in os.environ else COSTS)
    print(f"[{name}] done in {seconds:.1f} s, peak {peak_mib:.0f} MiB", file=sys.stderr, flush=True)
    remove_old_checkpoints(checkpoint_dir.parent, max_gb=max_gb, keep=checkpoint_dir)


def _call(function: Callable[[StageRun], None], run: StageRun) -> None:
    try:
        function(run)
    finally:
        run.line.end()
