"""The supervisor of one local job: waits for its GPU slots, runs its command, records how it ended.

`python -m posttrain.dispatch.backends.local_job JOB SLOTS NUM_GPUS`. Slots are locks on files, so
a job that dies in any way frees its own. A supervisor that waits for slots holds the queue's lock:
jobs get slots in the order in which they came.

The supervisor adopts all orphans below it and kills them at the end. Where it is killed itself, the
processes left carry the job's mark: the next process that asks for the job's status, or takes its
slot, kills them. (They do not die with it: found from their living parents, none gets away.)
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from posttrain.dispatch.backend import Cause
from posttrain.dispatch.backends.local import END, LOCK, SPEC, START, VISIBLE, visible_gpus, write_json
from posttrain.dispatch.processes import MARK, adopt_orphans, kill_marked, kill_tree
from posttrain.runtime.exits import as_shell
from posttrain.runtime.locks import take_lock, take_lock_now
from posttrain.runtime.state import private, private_folder

_POLL_S = 0.2


def supervise(job: Path, slots: Path, num_gpus: int) -> None:
    """Returns when the job is over; at once where another supervisor has it."""
    own = job / f"{LOCK}.{os.getpid()}"
    with open(own, "w", encoding="ascii", opener=private) as lock, ExitStack() as held:
        take_lock(lock)
        lock.write(str(os.getpid()))
        lock.flush()
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
        end = _run(spec, environment)
        for slot in taken.values():  # the next job that takes it has no processes to look for
            slot.truncate(0)
        write_json(job / END, end)


def _run(spec: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the command, and kill what it left behind, which would hold its GPU's memory. Returns how
    it ended."""
    limit_s = spec["resources"]["time_limit_s"]
    with open(spec["log"], "ab", opener=private) as log:
        try:
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(spec["command"], cwd=spec["folder"], env=environment, **streams)
        except OSError as error:
            note = f"{spec['command'][0]} cannot be started: {error.strerror}"
            return {"exit_code": 127, "cause": Cause.EXITED, "note": note}
    # A preemption: the command ends when it has its checkpoint.
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    try:
        end = {"exit_code": as_shell(process.wait(limit_s)), "cause": Cause.EXITED, "note": ""}
    except subprocess.TimeoutExpired:
        note = f"it ran longer than its limit of {limit_s} s"
        end = {"exit_code": None, "cause": Cause.TIME_LIMIT, "note": note}
    while not kill_tree(os.getpid(), keep_root=True):
        time.sleep(_POLL_S)
    return end


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
