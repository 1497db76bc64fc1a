"""The supervisor of one local job: waits for its GPU slots, runs its command, records how it ended.

`python -m posttrain.dispatch.backends.local_job JOB SLOTS NUM_GPUS`. Slots are locks on files, so
a job that dies in any way frees its own. A supervisor that waits for slots holds the queue's lock:
jobs get slots in the order in which they came.

Between supervisor and command is a guard, a fork of the supervisor that adopts all orphans below
and has inherited its locks. Where one of the two is killed the other kills the job, so the locks
are free once the job is dead. Where both are killed, the processes left carry the job's mark: the
next process that asks for the job's status, or takes its slot, kills them.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

from posttrain.dispatch.backend import Cause
from posttrain.dispatch.backends.local import END, LOCK, SPEC, START, VISIBLE, visible_gpus, write_json
from posttrain.dispatch.processes import MARK, adopt_orphans, kill_marked, kill_tree
from posttrain.runtime.exits import as_shell
from posttrain.runtime.locks import take_lock, take_lock_now
from posttrain.runtime.state import private, private_folder
from posttrain.runtime.worker import die_with_parent

_POLL_S = 0.2
_MAX_ANSWER_BYTES = 65536


def supervise(job: Path, slots: Path, num_gpus: int) -> None:
    """Returns when the job is over; at once where another supervisor has it."""
    own = job / f"{LOCK}.{os.getpid()}"
    with open(own, "w", encoding="ascii", opener=private) as lock, ExitStack() as held:
        take_lock(lock)
        _sign(lock)
        try:
            os.link(own, job / LOCK)  # it appears locked: an unlocked one is a dead supervisor's
        except FileExistsError:
            return
        finally:
            own.unlink()
        if (job / END).exists():  # cancelled before there was anybody to cancel
            return
        adopt_orphans()
        spec = json.loads((job / SPEC).read_text(encoding="utf-8"))
        taken = _take_slots(slots, num_gpus, spec["resources"]["gpus"], job, held)
        gpus = sorted(taken)
        write_json(job / START, {"gpus": gpus, "started_at": time.time()})
        environment = {**os.environ, **spec["environment"], VISIBLE: ",".join(visible_gpus(gpus)), MARK: str(job)}
        end = _run(spec, environment, lock, [*taken.values()])
        if end is not None:
            write_json(job / END, end)


def _run(
    spec: Mapping[str, Any], environment: Mapping[str, str], lock: IO[str], slots: Sequence[IO[str]]
) -> dict[str, Any] | None:
    """Runs the command. Returns its exit code, None where its process group leader was killed; the
    slots are freed once no process of it is left."""
    reading, writing = os.pipe()
    supervisor, guard = os.getpid(), os.fork()
    if guard == 0:
        try:
            os.close(reading)
            _die_with(supervisor, lock, slots)
            _guard(spec, environment, writing)
        finally:
            os._exit(1)
    os.close(writing)

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(guard, number)

    signal.signal(signal.SIGTERM, pass_on)  # a preemption: the command ends when it has its checkpoint
    limit_s = spec["resources"]["time_limit_s"]
    has_answer, _, _ = select.select([reading], [], [], limit_s)
    answer = os.read(reading, _MAX_ANSWER_BYTES) if has_answer else b""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the guard's number may be another's from here on
    if kill_tree(os.getpid(), keep_root=True):  # what it left behind would hold its GPU's memory
        _give_back(slots)
    if not has_answer:
        return {"exit_code": None, "cause": Cause.TIME_LIMIT, "note": f"it ran longer than its limit of {limit_s} s"}
    return json.loads(answer) if answer else None


def _die_with(supervisor: int, lock: IO[str], slots: Sequence[IO[str]]) -> None:
    """Have this process end when the supervisor dies, after killing all below it."""

    def end(*_: object) -> NoReturn:
        _sign(lock)  # it is held by this process alone now
        while not kill_tree(os.getpid(), keep_root=True):
            time.sleep(_POLL_S)
        _give_back(slots)
        os._exit(1)

    adopt_orphans()
    signal.signal(signal.SIGUSR2, end)
    die_with_parent(signal.SIGUSR2)
    if os.getppid() != supervisor:
        end()


def _guard(spec: Mapping[str, Any], environment: Mapping[str, str], writing: int) -> None:
    """Run the command and say how it ended."""
    with open(spec["log"], "ab", opener=private) as log:
        try:
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(spec["command"], cwd=spec["folder"], env=environment, **streams)
        except OSError as error:
            note = f"{spec['command'][0]} cannot be started: {error.strerror}"
            end = {"exit_code": 127, "cause": Cause.EXITED, "note": note}
        else:
            signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
            end = {"exit_code": as_shell(process.wait()), "cause": Cause.EXITED, "note": ""}
    os.write(writing, json.dumps(end).encode())


def _sign(lock: IO[str]) -> None:
    """Write this process's pid into the lock, in one write because it is read at any time."""
    os.pwrite(lock.fileno(), f"{os.getpid():<20}".encode(), 0)


def _take_slots(slots: Path, num_gpus: int, num_wanted: int, job: Path, held: ExitStack) -> dict[int, IO[str]]:
    """GPU numbers and their locks, which are also in `held`. Each lock file names its job until no
    process of that job lives."""
    if not num_wanted:
        return {}
    private_folder(slots)
    with open(slots / "queue.lock", "w", encoding="ascii", opener=private) as queue:
        take_lock(queue)
        taken: dict[int, IO[str]] = {}
        while len(taken) < num_wanted:
            for number in set(range(num_gpus)) - set(taken):
                slot = _take(slots / f"gpu-{number}.lock", job)
                if slot is None:
                    continue
                taken[number] = held.enter_context(slot)
                if len(taken) == num_wanted:
                    break
            else:
                time.sleep(_POLL_S)
    return taken


def _give_back(slots: Sequence[IO[str]]) -> None:
    """Empty the lock files: the next job that takes a slot has no processes to look for. The slots
    are free when supervisor and guard are gone."""
    for slot in slots:
        slot.truncate(0)


def _take(path: Path, job: Path) -> IO[str] | None:
    """The lock of a slot; None where its holder lives, or a process left by a dead holder that
    cannot be killed."""
    slot = open(path, "a+", encoding="utf-8", opener=private)  # noqa: SIM115 it is held for as long as it is open
    try:
        take_lock_now(slot)
    except BlockingIOError:
        slot.close()
        return None
    slot.seek(0)
    last = slot.read()
    if last and kill_marked(last):
        slot.close()
        return None
    slot.truncate(0)
    slot.write(str(job))
    slot.flush()
    return slot


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
