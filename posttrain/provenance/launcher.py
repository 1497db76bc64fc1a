"""Runs a stage in several worker processes, where the environment asks for it: `accelerate launch`
starts them below the runner, which waits, passes signals on and reports how they ended.

How many and how the model is shared among them are machine facts: `POSTTRAIN_LAUNCH` names one of
accelerate's files (infra/accelerate/), and `POSTTRAIN_PROCESSES` the number where it is not the
file's. They are in no fingerprint, so a larger queue retrains nothing.

accelerate's agent exits with 1 and a traceback whichever way a worker ended. So each worker writes
its own exit status (`posttrain/runtime/worker.py`), and one without it was killed.
`python -m posttrain.provenance.launcher OPTIONS …` is `accelerate launch` without that traceback.
"""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.runtime.exits import ConfigurationError, Interrupted, as_error
from posttrain.runtime.plain_yaml import read_yaml
from posttrain.runtime.threads import VARIABLE as THREADS
from posttrain.runtime.worker import CHECKPOINTS, STOP_SIGNALS, WORKERS, die_with_parent, is_alive, read_end, read_pid

LAUNCH, PROCESSES = "POSTTRAIN_LAUNCH", "POSTTRAIN_PROCESSES"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Launch:
    """accelerate's file and how many processes it starts on this machine."""

    config: Path
    num_processes: int


def asked_launch(environment: Mapping[str, str]) -> Launch | None:
    """None where the stage runs in this process. Raises ConfigurationError where the file or the
    number cannot be used."""
    named = environment.get(LAUNCH, "")
    if not named:
        return None
    content = read_yaml(Path(named))
    if not isinstance(content, dict) or "distributed_type" not in content:
        raise ConfigurationError(f"{LAUNCH} is {named!r}, no configuration of accelerate; see infra/accelerate/")
    number = environment.get(PROCESSES) or str(content.get("num_processes", ""))
    if not number.isdecimal() or int(number) < 1:
        raise ConfigurationError(
            f"{PROCESSES} is {number!r}, not a positive number of processes; unset it to have the number of {named}"
        )
    return Launch(Path(named), int(number))


def run_launched(launch: Launch, folder: Path, checkpoint_dir: Path, *, num_threads: int) -> float:
    """Run this very command in `launch.num_processes` workers; gives the sum of their peak MiB.

    `folder` takes their exit status. Stop signals are passed on. Raises the StageError of the first
    to fail, Interrupted where one was killed, SystemExit(1) after a traceback of its own.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {
        **os.environ,
        WORKERS: str(folder.resolve()),
        CHECKPOINTS: str(checkpoint_dir.resolve()),
        THREADS: str(max(1, num_threads // launch.num_processes)),
    }
    with _received_signals() as received:
        # In a session of its own: Ctrl-C is the runner's, and the workers die with it.
        process = subprocess.Popen(_command(launch, folder), env=environment, start_new_session=True)
        passed_on: set[tuple[int, int]] = set()
        try:
            while process.poll() is None:
                _pass_on(received, folder, launch.num_processes, passed_on)
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()
    return _conclude(launch, folder, is_good=process.returncode == 0, is_stopped=bool(received))


def _command(launch: Launch, folder: Path) -> list[str]:
    spec = sys.modules["__main__"].__spec__
    program = ["--module", spec.name] if spec is not None else [sys.argv[0]]
    options = ["--config_file", str(launch.config), "--num_processes", str(launch.num_processes)]
    # The agent would leave its empty log folders in the machine's temporary folder.
    options += ["--main_process_port", "0", "--log_dir", str(folder)]
    return [sys.executable, "-m", "posttrain.provenance.launcher", *options, *program, *sys.argv[1:]]


@contextlib.contextmanager
def _received_signals() -> Iterator[list[int]]:
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in STOP_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(received: list[int], folder: Path, num_processes: int, passed_on: set[tuple[int, int]]) -> None:
    """Signal the workers themselves, once they are there: accelerate's agent would kill them."""
    for number in set(received):
        for rank in range(num_processes):
            pid = read_pid(folder, rank)
            if pid is not None and (number, pid) not in passed_on and is_alive(folder, rank):
                passed_on.add((number, pid))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _conclude(launch: Launch, folder: Path, *, is_good: bool, is_stopped: bool) -> float:
    number = launch.num_processes
    ends = {rank: end for rank in range(number) if (end := read_end(folder, rank)) is not None}
    if is_good and len(ends) == number and all(end.code == 0 for end in ends.values()):
        return sum(end.peak_mib for end in ends.values())
    own = sorted((end for end in ends.values() if end.code and not end.is_follow_up), key=lambda end: end.at)
    if own:
        raise as_error(own[0].code, own[0].message) or SystemExit(1)
    if all(read_pid(folder, rank) is None for rank in range(number)):
        raise ConfigurationError(
            f"accelerate could not start {number} processes with {launch.config}; its error stands above"
        )
    if is_stopped:
        raise Interrupted("asked to stop before the first step was done: run again to go on from the last checkpoint")
    names = " and ".join(f"process {rank + 1}" for rank in range(number) if rank not in ends) or "one"
    raise Interrupted(
        f"{names} of {number} was killed from outside, often for lack of memory. The others were ended with it, "
        "because a step needs all of them; run again to go on from the last checkpoint"
    )


def main() -> None:
    """`accelerate launch`, quiet: the workers write how they ended."""
    die_with_parent(signal.SIGKILL)
    logging.disable(logging.CRITICAL)  # of the agent alone: the workers are other programs
    from accelerate.commands.launch import main as launch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch()
    except ChildFailedError:
        sys.exit(1)


if __name__ == "__main__":
    main()
