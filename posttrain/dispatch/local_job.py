"""The supervisor of one local job: waits for its GPU slots, runs its command, writes down how it ended.

`python -m posttrain.dispatch.local_job JOB SLOTS NUM_GPUS`. Slots are locks on files, so that a job that dies in any way gives its own back. Who
waits for slots holds the queue's lock: jobs get them in the order in which they came.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import IO, Any

from posttrain.dispatch.contract import Cause
from posttrain.dispatch.local import END, LOCK, SPEC, START, VISIBLE, visible_gpus, write_json
from posttrain.dispatch.processes import adopt_orphans, kill_tree
from posttrain.exits import as_shell

_POLL_S = 0.2


def supervise(job: Path, slots: Path, num_gpus: int) -> None:
    """Returns when the job is over; at once where another supervisor has it."""
    own = job / f"{LOCK}.{os.getpid()}"
    with own.open("w", encoding="ascii") as lock, ExitStack() as held:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
        gpus = _take_slots(slots, num_gpus, spec["resources"]["gpus"], held)
        write_json(job / START, {"gpus": gpus, "started_at": time.time()})
        write_json(job / END, _run(spec, gpus))


def _run(spec: dict[str, Any], gpus: Sequence[int]) -> dict[str, Any]:
    environment = {**os.environ, **spec["environment"], VISIBLE: ",".join(visible_gpus(gpus))}
    limit_s = spec["resources"]["time_limit_s"]
    with Path(spec["log"]).open("ab") as log:
        try:
            process = subprocess.Popen(
                spec["command"], cwd=spec["folder"], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            return {"exit_code": 127, "cause": Cause.EXITED, "note": f"{spec['command'][0]} cannot be started: {error.strerror}"}

        def pass_on(number: int, _: FrameType | None) -> None:
            process.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)  # a preemption: the command ends when it has its checkpoint
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            kill_tree(os.getpid(), keep_root=True)
            return {"exit_code": None, "cause": Cause.TIME_LIMIT, "note": f"it ran longer than its limit of {limit_s} s"}
    kill_tree(os.getpid(), keep_root=True)  # what it left behind would hold its GPU's memory
    return {"exit_code": as_shell(process.returncode), "cause": Cause.EXITED, "note": ""}


def _take_slots(slots: Path, num_gpus: int, num_wanted: int, held: ExitStack) -> list[int]:
    """The numbers of the GPUs; their locks are in `held`."""
    if not num_wanted:
        return []
    slots.mkdir(parents=True, exist_ok=True)
    with (slots / "queue.lock").open("w") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        taken: dict[int, IO[str]] = {}
        while len(taken) < num_wanted:
            for number in set(range(num_gpus)) - set(taken):
                slot = (slots / f"gpu-{number}.lock").open("w")
                try:
                    fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    slot.close()
                    continue
                taken[number] = held.enter_context(slot)
                if len(taken) == num_wanted:
                    break
            else:
                time.sleep(_POLL_S)
    return sorted(taken)


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
