"""Costs of the runs of stages: a line for each that has ended well, in `.posttrain/costs.jsonl`.

Outside of every output, because no two runs agree on them. Costs of the runs that made the present
outputs are committed beside these (`run_records.py`). Attempts that were preempted or killed count
too: a file beside the checkpoints, which goes where they go, has a line for each, written every ten
seconds, because a process that is killed writes nothing.
"""

import contextlib
import json
import math
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from posttrain.provenance.code_version import VARIABLE as VERSION
from posttrain.provenance.lockfile import replace_file
from posttrain.runtime.state import STATE_DIR, private

COSTS = STATE_DIR / "costs.jsonl"
COPIED_COSTS = Path(".cost.jsonl")  # in the frozen copy, for the process that made it
ATTEMPTS = "attempts.jsonl"
NUM_GPUS = "POSTTRAIN_NUM_GPUS"
STARTED = "POSTTRAIN_STAGE_STARTED"  # when the stage's command was started, on the clock that all processes share
_MAX = 1e11
_WRITE_EVERY_S = 10.0
_CPUS = Path("/proc/cpuinfo")  # absent outside Linux
_MAKERS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
# The libraries choose their code by these, the first that is there.
_INSTRUCTIONS = {"avx512_bf16": "AVX-512 with bfloat16", "avx512f": "AVX-512", "avx2": "AVX2"}


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one run of a stage. `seconds`: its own work; `whole_s`: with the copy of its inputs
    and its imports; `earlier_s`: attempts before it that were preempted or killed. `is_resumed`: it
    went on from what an earlier run had left, `resumed_at` after which steps. `at`: its end, in
    seconds since 1970. `version`: `str` of `code_version.Version`. `key` names what it read and
    made, `knobs` its command and knobs (`run_records.py`); empty of a run that was not recorded."""

    stage: str
    seconds: float
    whole_s: float
    peak_mib: float
    is_resumed: bool
    at: float
    earlier_s: float = 0.0
    resumed_at: tuple[int, ...] = ()
    version: str = ""
    processor: str = ""
    num_threads: int = 0
    num_gpus: int = 0
    key: str = ""
    knobs: str = ""

    @property
    def all_s(self) -> float:
        """Seconds of all attempts."""
        return self.earlier_s + self.whole_s

    @property
    def gpu_hours(self) -> float:
        """Hours reserved, used or not."""
        return self.all_s * self.num_gpus / 3600


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a result. `seconds`: how long it has worked, as far as it was written. `first`
    is the first progress, `(done, total)`: an attempt that resumes begins behind the others' work;
    None before any."""

    seconds: float = 0.0
    first: tuple[int, int] | None = None


class Attempts:
    """Attempts at the result whose checkpoints lie in `folder`; made when one begins, or by a
    worker of it (`is_new=False`)."""

    def __init__(self, folder: Path, *, is_new: bool = True) -> None:
        self._file = folder / ATTEMPTS
        self._began_s = self._written_s = time.monotonic()
        *self._earlier, self._own = [*_read_attempts(self._file), *([Attempt()] if is_new else [])] or [Attempt()]
        if is_new:
            self._write()

    def update(self, done: int, total: int) -> None:
        """Record the heartbeat, and the first progress."""
        now_s = time.monotonic()
        if self._own.first is None:
            self._own = replace(self._own, first=(done, total))
        elif now_s - self._written_s < _WRITE_EVERY_S:
            return
        self._written_s = now_s
        self._own = replace(self._own, seconds=round(now_s - self._began_s, 1))
        self._write()

    def end(self) -> tuple[float, tuple[int, ...]]:
        """Remove the file, because the result is there; gives the seconds of the earlier attempts,
        and the steps after which they were resumed."""
        if self._file.exists():
            *self._earlier, self._own = _read_attempts(self._file) or [self._own]  # a worker may have written it
            self._file.unlink()
        following = [*self._earlier[1:], self._own] if self._earlier else []
        # Several loops of one stage have no common numbers of steps.
        totals = {one.first[1] for one in (*self._earlier, self._own) if one.first is not None}
        steps = [one.first[0] - 1 for one in following if one.first is not None] if len(totals) == 1 else []
        return round(sum(one.seconds for one in self._earlier), 1), tuple(step for step in steps if step > 0)

    def _write(self) -> None:
        lines = "".join(json.dumps(asdict(one)) + "\n" for one in (*self._earlier, self._own))
        with contextlib.suppress(OSError):  # nothing depends on it
            replace_file(self._file, lines)


def measured_cost(
    stage: str, *, seconds: float, peak_mib: float, is_resumed: bool, num_threads: int, attempts: Attempts
) -> Cost:
    """Cost of the run that ends now, in this process."""
    started = os.environ.get(STARTED)
    earlier_s, resumed_at = attempts.end()
    return Cost(
        stage=stage,
        seconds=round(seconds, 2),
        whole_s=round(time.monotonic() - float(started) if started else seconds, 2),
        peak_mib=round(peak_mib),
        is_resumed=is_resumed,
        at=math.ceil(10 * time.time()) / 10,  # not before the last file that it wrote
        earlier_s=earlier_s,
        resumed_at=resumed_at,
        version=os.environ.get(VERSION, ""),
        processor=processor_kind(),
        num_threads=num_threads,
        num_gpus=num_gpus_here(os.environ),
    )


def num_gpus_here(environment: Mapping[str, str]) -> int:
    """Number of GPUs that the backend has reserved (`NUM_GPUS`); else that CUDA may see; else of
    the machine."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if NUM_GPUS in environment:
        return int(environment[NUM_GPUS])
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def processor_kind(cpus: Path = _CPUS) -> str:
    """Maker and instruction set, such as `AMD, AVX-512 with bfloat16`: results are the same bytes
    on one kind, and another rounds some sums otherwise (`python -m benchmarks.bytes`)."""
    text = cpus.read_text(encoding="utf-8") if cpus.exists() else ""
    maker = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.*)", text, re.MULTILINE)
    if maker is None or flags is None:
        return platform.machine()
    has = set(flags[1].split())
    instructions = next((name for flag, name in _INSTRUCTIONS.items() if flag in has), platform.machine())
    return f"{_MAKERS.get(maker[1], maker[1])}, {instructions}"


def append_cost(cost: Cost, file: Path = COSTS) -> None:
    with open(file, "a", encoding="utf-8", opener=private) as lines:
        lines.write(json.dumps(asdict(cost)) + "\n")


def read_costs(root: Path) -> list[Cost]:
    """Costs of all runs of the tree, oldest first."""
    return read_cost_lines(root / COSTS)


def read_cost_lines(file: Path) -> list[Cost]:
    """Costs in a file; a line that is cut off or no cost is left out."""
    return [cost for line in _lines(file) if (cost := parse_cost(line)) is not None]


def last_runs(costs: list[Cost]) -> dict[str, Cost]:
    """Last run from nothing of each stage; of one that was always resumed, its longest."""
    longest: dict[str, Cost] = {}
    for cost in costs:
        longest[cost.stage] = max(longest.get(cost.stage, cost), cost, key=lambda one: one.whole_s)
    return longest | {cost.stage: cost for cost in costs if not cost.is_resumed}


def parse_cost(line: str | bytes) -> Cost | None:
    """Cost of a line; None where it is none."""
    try:
        found = json.loads(line)
        return Cost(**{name: read(found[name]) for name, read in _FIELDS.items() if name in found})
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return None


def _positive(number: Any) -> float:
    """Seconds or MiB; a date is before the year 5000."""
    if not 0 <= number < _MAX:
        raise ValueError(number)
    return float(number)


_READERS: Mapping[Any, Callable[[Any], Any]] = {
    str: str,
    int: int,
    float: _positive,
    bool: lambda value: value is True,
    tuple[int, ...]: lambda values: tuple(map(int, values)),
}
_FIELDS = {field.name: _READERS[field.type] for field in fields(Cost)}


def _read_attempts(file: Path) -> list[Attempt]:
    """None of them where one is damaged: no result depends on them."""
    try:
        found = [json.loads(line) for line in _lines(file)]
        return [
            Attempt(float(one["seconds"]), None if one["first"] is None else (one["first"][0], one["first"][1]))
            for one in found
        ]
    except (ValueError, TypeError, LookupError):
        return []


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
