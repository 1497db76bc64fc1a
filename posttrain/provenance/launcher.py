"""Runs a stage in several worker processes, where the environment asks for it: `accelerate launch`
starts them below the runner, which waits, passes signals on and reports how they ended.

How many and how the model is shared among them are machine facts: `POSTTRAIN_LAUNCH` names one of
accelerate's files (infra/accelerate/), `POSTTRAIN_PROCESSES` the number on a node where it is not
the file's, `POSTTRAIN_NODES` how many nodes there are (`nodes.py`). They are in no fingerprint, so
a larger queue retrains nothing.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.provenance.nodes import NODES, Call, OtherNodes, call_nodes, free_port
from posttrain.runtime.exits import ConfigurationError, Interrupted, as_error
from posttrain.runtime.plain_yaml import read_yaml
from posttrain.runtime.threads import VARIABLE as THREADS
from posttrain.runtime.worker import (
    CHECKPOINTS,
    STOP_SIGNALS,
    WORKERS,
    WorkerEnd,
    die_with_parent,
    is_alive,
    read_end,
    read_pid,
)

LAUNCH, PROCESSES = "POSTTRAIN_LAUNCH", "POSTTRAIN_PROCESSES"
_POLL_S = 0.1
_GO_ON = "run again to go on from the last checkpoint"
_TOLD = ("POSTTRAIN_", "PYTHON", "HF_HUB_")  # variables that the workers of all nodes have in common


@dataclass(frozen=True, slots=True)
class Launch:
    """accelerate's file and how many processes it starts on each node."""

    config: Path
    num_processes: int
    num_nodes: int = 1

    @property
    def num_workers(self) -> int:
        """Processes on all nodes together."""
        return self.num_processes * self.num_nodes


def asked_launch(environment: Mapping[str, str]) -> Launch | None:
    """None where the stage runs in this process. Raises ConfigurationError where the file or a
    number cannot be used."""
    named = environment.get(LAUNCH, "")
    if not named:
        return None
    content = read_yaml(Path(named))
    if not isinstance(content, dict) or "distributed_type" not in content:
        raise ConfigurationError(f"{LAUNCH} is {named!r}, no configuration of accelerate; see infra/accelerate/")
    numbers = []
    for variable, default in ((PROCESSES, str(content.get("num_processes", ""))), (NODES, "1")):
        number = environment.get(variable) or default
        if not number.isdecimal() or int(number) < 1:
            raise ConfigurationError(
                f"{variable} is {number!r}, not a positive number of {variable.rpartition('_')[2].lower()}; "
                f"unset it to have {'the number of ' + named if variable == PROCESSES else 'one'}"
            )
        numbers.append(int(number))
    return Launch(Path(named), *numbers)


def run_launched(launch: Launch, folder: Path, checkpoint_dir: Path, *, num_threads: int) -> float:
    """Run this very command in `launch.num_processes` workers on each node; gives the sum of their
    peak MiB.

    `folder` takes the exit status of this node's. Stop signals are passed on. Raises the StageError
    of the first to fail, Interrupted where one was killed or a node is gone, SystemExit(1) after a
    traceback of its own.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    told = {name: value for name, value in os.environ.items() if name.startswith(_TOLD)}
    told |= {CHECKPOINTS: str(checkpoint_dir.resolve()), THREADS: str(max(1, num_threads // launch.num_processes))}
    call = Call(
        folder=str(Path.cwd()),
        config=str(launch.config.resolve()),
        num_nodes=launch.num_nodes,
        num_processes=launch.num_processes,
        program=_program(),
        environment=told,
        rendezvous_port=free_port() if launch.num_nodes > 1 else 0,
    )
    with (
        received_signals() as received,
        call_nodes(call, folder, received) as others,
        started_agent(call, folder, interface=others.interface) as agent,
    ):
        while agent.is_running and not others.is_overdue:
            agent.pass_on(received)
            others.exchange(received, agent.ends())
            time.sleep(_POLL_S)
        others.finish(received, agent.ends(), is_good=agent.exit_code == 0)
    is_good = agent.exit_code == 0 and all(node.exit_code == 0 for node in others.nodes)
    return _conclude(launch, folder, others, is_good=is_good, is_stopped=bool(received))


class Agent:
    """accelerate's agent on one node, which has the workers below it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, ranks: Sequence[int]) -> None:
        self._process, self._folder, self._ranks = process, folder, ranks
        self._passed_on: set[tuple[int, int]] = set()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def pass_on(self, received: Sequence[int]) -> None:
        """Signal the workers themselves, once they are there: accelerate's agent would kill
        them."""
        for number in set(received):
            for rank in self._ranks:
                pid = read_pid(self._folder, rank)
                if pid is not None and (number, pid) not in self._passed_on and is_alive(self._folder, rank):
                    self._passed_on.add((number, pid))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)

    def ends(self) -> dict[int, WorkerEnd | None]:
        """Ends by rank of the workers that are over; None of one that was killed."""
        begun = [rank for rank in self._ranks if read_pid(self._folder, rank) is not None]
        return {rank: read_end(self._folder, rank) for rank in begun if not is_alive(self._folder, rank)}


@contextlib.contextmanager
def started_agent(
    call: Call, folder: Path, *, node: int = 0, address: str = "127.0.0.1", interface: str = ""
) -> Iterator[Agent]:
    """The agent of one node, killed with its workers at the end. `address` is the first node's;
    `interface` of the network leads there, for collectives where the environment names none."""
    environment = {**os.environ, **call.environment, WORKERS: str(folder.resolve())}
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ():
        environment.setdefault(variable, interface)
    num_workers = call.num_processes * call.num_nodes
    options = ["--config_file", call.config, "--num_processes", str(num_workers)]
    # The agent would leave its empty log folders in the machine's temporary folder.
    options += ["--main_process_port", str(call.rendezvous_port), "--log_dir", str(folder)]
    if call.num_nodes > 1:
        options += ["--num_machines", str(call.num_nodes), "--machine_rank", str(node)]
        options += ["--main_process_ip", address, "--same_network"]
    command = [sys.executable, "-m", "posttrain.provenance.launcher", *options, *call.program]
    ranks = range(node * call.num_processes, (node + 1) * call.num_processes)
    # In a session of its own: Ctrl-C is the runner's, and the workers die with it.
    process = subprocess.Popen(command, env=environment, cwd=call.folder, start_new_session=True)
    try:
        yield Agent(process, folder, ranks)
    finally:
        process.kill()
        process.wait()


def _program() -> tuple[str, ...]:
    spec = sys.modules["__main__"].__spec__
    return (*(("--module", spec.name) if spec is not None else (sys.argv[0],)), *sys.argv[1:])


@contextlib.contextmanager
def received_signals() -> Iterator[list[int]]:
    """Stop signals that came in the block, in a list that grows."""
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in STOP_SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _conclude(launch: Launch, folder: Path, others: OtherNodes, *, is_good: bool, is_stopped: bool) -> float:
    number = launch.num_workers
    own = {rank: read_end(folder, rank) for rank in range(launch.num_processes)}
    ends = {rank: end for rank, end in {**own, **others.ends}.items() if end is not None}
    if is_good and len(ends) == number and all(end.code == 0 for end in ends.values()):
        return sum(end.peak_mib for end in ends.values())
    # By the clocks of their nodes, which may differ: each of them is reason enough.
    bad = sorted((end for end in ends.values() if end.code and not end.is_follow_up), key=lambda end: end.at)
    if bad:
        raise as_error(bad[0].code, bad[0].message) or SystemExit(1)
    if others.lost:
        raise Interrupted(
            f"{' and '.join(map(str, others.lost))} of {launch.num_nodes} nodes is gone: its follower was killed, its "
            "processes hang, or the network to it is down. All processes were ended, because a step needs every node; "
            f"{_GO_ON}"
        )
    unstarted = "" if any(read_pid(folder, rank) for rank in range(launch.num_processes)) else "here"
    for node in others.nodes:
        if node.exit_code and not any(rank // launch.num_processes == node.number for rank in others.ends):
            unstarted = f"on {node}"
    if unstarted:
        raise ConfigurationError(
            f"accelerate could not start {launch.num_processes} processes {unstarted} with {launch.config}; "
            "its error stands above"
        )
    if is_stopped:
        raise Interrupted("asked to stop before the first step was done: run again to go on from the last checkpoint")
    killed = [rank for rank, end in others.ends.items() if end is None] or [*set(range(number)) - set(ends)]
    names = " and ".join(f"process {rank + 1}" for rank in sorted(killed)) or "one"
    raise Interrupted(
        f"{names} of {number} was killed from outside, often for lack of memory. The others were ended with it, "
        f"because a step needs all of them; {_GO_ON}"
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
