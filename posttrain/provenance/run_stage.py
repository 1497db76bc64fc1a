"""Runs one stage on a frozen copy of what it declares: the command of every stage in `dvc.yaml`,
`python -m posttrain.provenance.run_stage NAME [ITEM]`.

    dvc repro ─ sh ─ this process ─ python -m stages.NAME in a frozen copy ─ (accelerate and its
    processes)
                     └ guard, which outlives dvc

It loads nothing heavy and nothing of the stage's own: inputs are copied and hashed before a line of
the stage is imported. What the stage made is moved into the tree when the copy is untouched and the
inputs in the tree are still those of the copy, and a receipt says what it read. In a snapshot,
which is a frozen tree already, the stage runs in place.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from posttrain.provenance.cache_integrity import refuse_damaged
from posttrain.provenance.code_version import VARIABLE as VERSION
from posttrain.provenance.code_version import read_version
from posttrain.provenance.costs import HANDED_OVER, STARTED, read_cost_lines
from posttrain.provenance.environment import KEY, LIVE_ROOT, is_snapshot, stage_environment, temporary_folder
from posttrain.provenance.fingerprint import (
    Fingerprint,
    StageInputs,
    file_and_key,
    file_states,
    links_to_folders,
    lock_form,
    read_stage_inputs,
    refuse_if_changed,
)
from posttrain.provenance.frozen_copy import freeze, frozen_folder, place_outs, refuse_if_touched
from posttrain.provenance.lock_watchdog import find_dvc, start_guard
from posttrain.provenance.lockfile import knobs_as_dvc, lock_entries
from posttrain.provenance.receipts import Dvc, Receipt, settle
from posttrain.provenance.run_cache import own_run_cache
from posttrain.provenance.run_records import record_run
from posttrain.provenance.tree_locks import full_name, hold_checkpoints, hold_stage, say_ending
from posttrain.provenance.wandb_variables import wandb_variables
from posttrain.runtime.exits import ConfigurationError, Interrupted, StageError, as_shell, say_end
from posttrain.runtime.state import remove_tree, state_dir
from posttrain.runtime.worker import STOP_SIGNALS, die_with_parent

_LOOK_S = 0.2
_GRACE_S = 10.0  # of a stage whose dvc is dead: time for a checkpoint


def main() -> None:
    """Exits with the code of the stage, which says its own end; ours are said here."""
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
    settle(root, _tell)
    dvc = find_dvc(os.environ, root)
    if dvc is not None:
        own_run_cache(root, _tell)
        start_guard(root, dvc)
    inputs = read_stage_inputs(root / "dvc.yaml", name, item)
    with contextlib.ExitStack() as held:
        lock = held.enter_context(hold_stage(root, stage))
        folder = held.enter_context(_folder(frozen_folder(root) / stage))
        copy = freeze(inputs, root, folder)
        frozen = copy.fingerprint
        for link in links_to_folders(root, inputs.deps):
            _tell(
                f"[{stage}] {link} is a link to a folder, which DVC does not follow: the stage cannot see what lies "
                "there. Name that folder among its deps in dvc.yaml, or copy it in"
            )
        entries = lock_entries(root)
        refuse_damaged(entries, inputs, frozen, root)
        receipt = _receipt(stage, inputs, frozen, folder, entries.get(stage), dvc)
        held.enter_context(hold_checkpoints(root, stage, frozen.digest))
        version = read_version(root)
        environment = stage_environment(folder) | {KEY: frozen.digest, LIVE_ROOT: str(root), VERSION: str(version)}
        environment["TMPDIR"] = str(held.enter_context(temporary_folder()))
        if environment.get("WANDB_MODE") != "disabled":
            environment |= wandb_variables(root, environment, version)
        code = _run_below(_command(name, item), folder, environment, dvc, lock)
        if code == 0:
            refuse_if_touched(folder, copy.files, inputs.outs)
            refuse_if_changed(inputs, frozen, root)
        made = [out for out in inputs.outs if (folder / out).exists()]
        outs = lock_form(made, file_states(made, folder)) if code == 0 else []
        receipt = replace(receipt, outs=outs)
        if code == 0 and dvc is not None:
            receipt.write(root)
        place_outs(made, folder, root)  # of a failed stage, too: they are what a person looks at
        if code == 0:
            costs = read_cost_lines(folder / HANDED_OVER)
            record_run(root, stage, _entry(receipt, inputs), costs[-1] if costs else None)
    return code


def _receipt(
    stage: str, inputs: StageInputs, frozen: Fingerprint, folder: Path, before: dict[str, Any] | None, dvc: Dvc | None
) -> Receipt:
    """Of what is about to run; its outs are not there yet."""
    deps = lock_form(inputs.deps, frozen.files)
    params = {file: (folder / file).read_text(encoding="utf-8") for file in inputs.params_files}
    return Receipt(stage=stage, command=inputs.command, deps=deps, params=params, outs=[], before=before, dvc=dvc)


def _entry(receipt: Receipt, inputs: StageInputs) -> dict[str, Any]:
    """As `dvc.lock` is to have it."""
    places = [file_and_key(param) for param in inputs.params]
    params = {
        file: knobs_as_dvc(text, [key for other, key in places if other == file])
        for file, text in receipt.params.items()
    }
    return {"cmd": receipt.command, "deps": receipt.deps, "params": params, "outs": receipt.outs}


def _command(name: str, item: str) -> list[str]:
    return [sys.executable, "-m", f"stages.{name}", *filter(None, [item])]


def _run_below(command: list[str], folder: Path, environment: dict[str, str], dvc: Dvc | None, lock: IO[str]) -> int:
    """The exit code of the stage, which dies with this process. Signals to stop are passed on;
    Raises Interrupted where its dvc has died."""
    process = subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=lambda: die_with_parent(signal.SIGKILL))  # noqa: PLW1509 no threads
    asked: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        asked.append(number)
        process.send_signal(number)

    for number in STOP_SIGNALS:
        signal.signal(number, pass_on)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal's Ctrl-C reaches the stage, too, and how it ends is told below
    deadline_s: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(None if dvc is None else _LOOK_S)
            break
        if deadline_s is None and dvc is not None and not dvc.is_alive():
            deadline_s = time.monotonic() + _GRACE_S
            say_ending(lock)
            process.terminate()
        elif deadline_s is not None and time.monotonic() > deadline_s:
            process.kill()
    if deadline_s is not None:
        raise Interrupted(
            "its dvc is dead, so nobody would record the result: the stage was ended; run `dvc repro` again to go on"
        )
    if code in (-signal.SIGTERM, -signal.SIGUSR1) and asked:
        raise Interrupted("asked to stop before the stage began: run again")
    return as_shell(code)


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """Not there yet, and gone afterwards; one that a killed process has left goes first."""
    remove_tree(path)
    try:
        yield path
    finally:
        remove_tree(path)
        with contextlib.suppress(OSError):  # another stage's copy lies there
            path.parent.rmdir()


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
