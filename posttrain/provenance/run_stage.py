"""Runs one stage on a frozen copy of its declared inputs: the command of every stage in `dvc.yaml`,
`python -m posttrain.provenance.run_stage NAME [ITEM]`.

    dvc repro ─ sh ─ this process ─ python -m stages.NAME in a frozen copy ─ (accelerate and its
                     │                                                       workers)
                     └ watchdog, which outlives dvc

It loads nothing heavy and nothing of the stage's own: inputs are copied and hashed before a line of
the stage is imported. The outputs are moved into the tree when the copy is untouched and the inputs
in the tree are still those of the copy, and a receipt records what was read. In a snapshot, which
is a frozen tree already, the stage runs in place.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

from posttrain.provenance.cache_integrity import refuse_damaged
from posttrain.provenance.code_version import VARIABLE as VERSION
from posttrain.provenance.code_version import read_version, wandb_variables
from posttrain.provenance.costs import COPIED_COSTS, STARTED, read_cost_lines
from posttrain.provenance.environment import KEY, TEMPORARY, TREE_ROOT, is_snapshot, stage_environment
from posttrain.provenance.fingerprint import (
    file_states,
    lock_form,
    read_stage_inputs,
    refuse_if_changed,
)
from posttrain.provenance.frozen_copy import FrozenCopy, freeze, frozen_folder, move_outs, refuse_if_touched
from posttrain.provenance.lock_watchdog import find_dvc, start_watchdog
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.receipts import Dvc, Receipt, apply_receipts
from posttrain.provenance.run_cache import separate_run_cache
from posttrain.provenance.run_records import record_run
from posttrain.provenance.tree_locks import announce_end, full_name, lock_checkpoints, lock_stage
from posttrain.runtime.exits import ConfigurationError, Interrupted, StageError, as_shell, say_end
from posttrain.runtime.state import remove_tree, state_dir
from posttrain.runtime.worker import STOP_SIGNALS, die_with_parent

_POLL_S = 0.2
_GRACE_S = 10.0  # for the last checkpoint of a stage whose dvc is dead
# As `python -m stages.NAME`. The garbage collector would look through all modules again and again
# while torch and transformers are imported: a third of the time. The runner turns it on.
_WITHOUT_GC = (
    "import gc, runpy, sys; gc.disable(); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def main() -> None:
    """Exit with the code of the stage, which prints its own end; an end of this process is printed
    here."""
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m posttrain.provenance.run_stage NAME [ITEM]")
    name, item = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else ""
    os.environ[STARTED] = str(time.monotonic())
    if is_snapshot(os.environ):
        os.execve(sys.executable, _command(name, item), stage_environment(Path.cwd()))  # noqa: S606 no shell is wanted
    try:
        code = run(name, item, Path.cwd())
    except (StageError, OSError) as error:
        code = error.code if isinstance(error, StageError) else Interrupted.code
        say_end(full_name(name, item), str(error), code)
    sys.exit(code)


def run(name: str, item: str, root: Path) -> int:
    """The stage's exit code. Raises Interrupted where an input was edited while it ran, or another
    process runs the same stage, ConfigurationError where `dvc.yaml` has no such stage."""
    if not (root / "stages" / f"{name}.py").is_file():
        raise ConfigurationError(
            f"there is no stages/{name}.py; a stage's function is named as the stage and stands in a file of its name"
        )
    stage = full_name(name, item)
    state_dir(root)
    # A run before this one may have been killed between its receipt and DVC's entry.
    apply_receipts(root, _log)
    dvc = find_dvc(os.environ, root)
    if dvc is not None:
        separate_run_cache(root, _log)
        start_watchdog(root, dvc)
    inputs = read_stage_inputs(root / "dvc.yaml", name, item)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(lock_stage(root, stage))
        folder = stack.enter_context(_removed_afterwards(frozen_folder(root) / stage))
        copy = freeze(inputs, root, folder)
        frozen, entries = copy.fingerprint, lock_entries(root)
        refuse_damaged(entries, frozen, root)
        # Snapshots of this tree share the checkpoints, and not the lock of the stage.
        stack.enter_context(lock_checkpoints(root, stage, frozen.key))
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True))
        environment = _environment(root, folder, frozen.key, temporary)
        code = _run_below(_command(name, item), folder, environment, dvc, lock)
        if code == 0:
            _accept(root, stage, copy, entries.get(stage), dvc)
        else:
            move_outs(_made(copy), folder, root)  # for a person to look at
    return code


def _accept(root: Path, stage: str, copy: FrozenCopy, before: dict[str, Any] | None, dvc: Dvc | None) -> None:
    """Move the outputs into the tree, with receipt and record. Raises Interrupted after an edit."""
    frozen, folder, inputs = copy.fingerprint, copy.folder, copy.fingerprint.inputs
    refuse_if_touched(folder, copy.files, inputs.outs)
    refuse_if_changed(frozen, root)
    made = _made(copy)
    entry = frozen.entry | {"outs": lock_form(made, file_states(made, folder))}
    if dvc is not None:  # before DVC sees the outputs, so that no moment is without a receipt
        texts = {file: (folder / file).read_text(encoding="utf-8") for file in inputs.params_files}
        Receipt(stage, entry["cmd"], entry["deps"], texts, entry["outs"], before, dvc).write(root)
    move_outs(made, folder, root)
    costs = read_cost_lines(folder / COPIED_COSTS)
    record_run(root, stage, entry, costs[-1] if costs else None)


def _made(copy: FrozenCopy) -> list[str]:
    return [out for out in copy.fingerprint.inputs.outs if (copy.folder / out).exists()]


def _environment(root: Path, folder: Path, key: str, temporary: str) -> dict[str, str]:
    version = read_version(root)
    own = {KEY: key, TREE_ROOT: str(root), VERSION: str(version), "TMPDIR": temporary}
    environment = stage_environment(folder) | own
    if environment.get("WANDB_MODE") != "disabled":
        environment |= wandb_variables(root, environment, version)
    return environment


def _command(name: str, item: str) -> list[str]:
    return [sys.executable, "-c", _WITHOUT_GC, f"stages.{name}", *filter(None, [item])]


def _run_below(command: list[str], folder: Path, environment: dict[str, str], dvc: Dvc | None, lock: IO[str]) -> int:
    """The exit code of the stage, which dies with this process. Signals to stop are passed on.
    Raises Interrupted where its dvc has died."""
    process = subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=lambda: die_with_parent(signal.SIGKILL))  # noqa: PLW1509 no threads
    received: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        received.append(number)
        process.send_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, pass_on)
    # A terminal's Ctrl-C reaches the stage, too, whose end is reported below.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deadline_s: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(None if dvc is None else _POLL_S)
            break
        if deadline_s is None and dvc is not None and not dvc.is_alive():
            deadline_s = time.monotonic() + _GRACE_S
            announce_end(lock)
            process.terminate()
        elif deadline_s is not None and time.monotonic() > deadline_s:
            process.kill()
    if deadline_s is not None:
        raise Interrupted(
            "its dvc is dead, so nobody would record the result: the stage was ended; run `dvc repro` again to go on"
        )
    if code in (-signal.SIGTERM, -signal.SIGUSR1) and received:
        raise Interrupted("asked to stop before the stage began: run again")
    return as_shell(code)


@contextlib.contextmanager
def _removed_afterwards(path: Path) -> Iterator[Path]:
    """A folder that the block makes; one that a killed process has left is removed first."""
    remove_tree(path)
    try:
        yield path
    finally:
        remove_tree(path)
        with contextlib.suppress(OSError):  # another stage's copy lies there
            path.parent.rmdir()


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
