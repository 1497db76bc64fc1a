"""Records what each run of a stage took, and where. A line for each that has ended well, in
`.posttrain/costs.jsonl`.

Outside of every output, because no two runs agree on them, and no result depends on them. What is
known of the runs that made the present outputs is committed beside these (`run_records.py`).
"""

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.provenance.attempts import Attempts
from posttrain.provenance.code_version import VARIABLE as VERSION
from posttrain.provenance.cpu_kind import processor_kind
from posttrain.provenance.environment import foreign_modules
from posttrain.runtime.state import STATE_DIR, private

COSTS = STATE_DIR / "costs.jsonl"
HANDED_OVER = Path(".cost.jsonl")  # in the frozen copy, for the process that made it
_MAX = 1e11
NUM_GPUS = "POSTTRAIN_NUM_GPUS"
STARTED = "POSTTRAIN_STAGE_STARTED"  # when the stage's launcher was started, on the clock that all processes share


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of a stage. `seconds` is the stage's own work; `whole_s` counts the copy of its
    inputs and its imports too; `earlier_s` is what attempts before it took that were preempted or
    killed, as far as they could tell. `is_resumed`: it went on from what an earlier run had left,
    `resumed_at` after which steps. `at`: its end, in seconds since 1970. `version` as
    `version.Version` is written; `num_gpus` are those it could use. `key` names what it read and
    made (`run_records.py`), and is empty of a run that was not recorded; `knobs` names its command
    and knobs, and is empty of a run that an older version recorded. `foreign`: modules that it
    loaded from elsewhere than the frozen copy and what is installed (`environment.py`)."""

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
    foreign: tuple[str, ...] = ()

    @property
    def all_s(self) -> float:
        """Of all attempts at it."""
        return self.earlier_s + self.whole_s

    @property
    def gpu_hours(self) -> float:
        """Reserved, whether it used them or not."""
        return self.all_s * self.num_gpus / 3600


def measured_cost(
    stage: str, *, seconds: float, peak_mib: float, is_resumed: bool, num_threads: int, attempts: Attempts
) -> Cost:
    """Of the run that ends now, in this process."""
    started = os.environ.get(STARTED)
    whole_s = time.monotonic() - float(started) if started else seconds
    earlier_s, resumed_at = attempts.end()
    return Cost(
        stage=stage,
        seconds=round(seconds, 2),
        whole_s=round(whole_s, 2),
        peak_mib=round(peak_mib),
        is_resumed=is_resumed,
        at=math.ceil(10 * time.time()) / 10,  # not before the last that it wrote
        earlier_s=earlier_s,
        resumed_at=resumed_at,
        version=os.environ.get(VERSION, ""),
        processor=processor_kind(),
        num_threads=num_threads,
        num_gpus=num_gpus_here(os.environ),
        foreign=foreign_modules(sys.modules, Path.cwd()),
    )


def num_gpus_here(environment: Mapping[str, str]) -> int:
    """What the pool has reserved (`NUM_GPUS`); else those that CUDA may see; else those of the
    machine."""
    reserved, visible = environment.get(NUM_GPUS, ""), environment.get("CUDA_VISIBLE_DEVICES")
    if reserved.isdecimal():
        return int(reserved)
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def append_cost(cost: Cost, file: Path = COSTS) -> None:
    """Add a line."""
    with open(file, "a", encoding="utf-8", opener=private) as lines:
        lines.write(json.dumps(asdict(cost)) + "\n")


def read_costs(root: Path) -> list[Cost]:
    """All that the tree's stages have left, oldest first. What is no such line (cut off, of an
    older version) is left out: an estimate is made without it."""
    return read_cost_lines(root / COSTS)


def read_cost_lines(file: Path) -> list[Cost]:
    """As `read_costs`, of one file; none where there is none."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [cost for line in lines if (cost := parse_cost(line)) is not None]


def last_runs(costs: list[Cost]) -> dict[str, Cost]:
    """Of each stage its last run from nothing; of one that was always resumed, its longest."""
    longest: dict[str, Cost] = {}
    for cost in costs:
        longest[cost.stage] = max(longest.get(cost.stage, cost), cost, key=lambda one: one.whole_s)
    return longest | {cost.stage: cost for cost in costs if not cost.is_resumed}


def parse_cost(line: str | bytes) -> Cost | None:
    """The one that a line or a file holds; None of what is none. What older versions did not
    record is empty."""
    try:
        found = json.loads(line)
        return Cost(
            stage=str(found["stage"]),
            seconds=_positive(found["seconds"]),
            whole_s=_positive(found.get("whole_s", found["seconds"])),
            peak_mib=_positive(found["peak_mib"]),
            is_resumed=found.get("is_resumed", False) is True,
            at=_positive(found.get("at", 0.0)),
            earlier_s=_positive(found.get("earlier_s", 0.0)),
            resumed_at=tuple(int(step) for step in found.get("resumed_at", ())),
            version=str(found.get("version", "")),
            processor=str(found.get("processor", "")),
            num_threads=int(found.get("num_threads", 0)),
            num_gpus=int(found.get("num_gpus", 0)),
            key=str(found.get("key", "")),
            knobs=str(found.get("knobs", "")),
            foreign=tuple(str(name) for name in found.get("foreign", ())),
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        return None


def _positive(number: Any) -> float:
    """Raises ValueError or TypeError of what is no number of seconds, or of MiB; a date is before
    the year 5000."""
    if not 0 <= number < _MAX:
        raise ValueError(number)
    return float(number)
