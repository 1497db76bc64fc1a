"""Records how long each stage took here. A line for each that has ended well, in
`.posttrain/costs.jsonl`; for a tree that has run nothing yet there are the committed figures of one
machine, in `reports/costs.json` (`make bench`).

Outside of every output, because no two runs agree on them, and no result depends on them.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posttrain.state import STATE_DIR, private

COSTS = STATE_DIR / "costs.jsonl"
COMMITTED = Path("reports/costs.json")
STARTED = "POSTTRAIN_STAGE_STARTED"  # when the stage's launcher was started, on the clock that all processes share


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of a stage. `seconds` is the stage's own work; `whole_s` counts the copy of its
    inputs and its imports too. `is_resumed`: it went on from what an earlier run had left. `at`:
    its end, in seconds since 1970."""

    stage: str
    seconds: float
    whole_s: float
    peak_mib: float
    is_resumed: bool
    at: float


def record_cost(stage: str, *, seconds: float, peak_mib: float, is_resumed: bool) -> None:
    """Append a line in the working folder's state folder."""
    started = os.environ.get(STARTED)
    whole_s = time.monotonic() - float(started) if started else seconds
    cost = Cost(stage, round(seconds, 2), round(whole_s, 2), round(peak_mib), is_resumed, round(time.time(), 1))
    with open(COSTS, "a", encoding="utf-8", opener=private) as file:
        file.write(json.dumps(asdict(cost)) + "\n")


def read_costs(root: Path) -> list[Cost]:
    """All that the tree's stages have left, oldest first. What is no such line (cut off, of an
    older version) is left out: an estimate is made without it."""
    try:
        lines = (root / COSTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [cost for line in lines for cost in _read(line)]


def last_seconds(costs: list[Cost]) -> dict[str, float]:
    """Of each stage, how long its last run took from nothing; of one that was always resumed, its
    longest."""
    longest: dict[str, float] = {}
    for cost in costs:
        longest[cost.stage] = max(cost.whole_s, longest.get(cost.stage, 0.0))
    return longest | {cost.stage: cost.whole_s for cost in costs if not cost.is_resumed}


def committed_seconds(root: Path) -> tuple[dict[str, float], str]:
    """The committed figures, and whose they are; nothing where there are none that can be read."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        content = json.loads((root / COMMITTED).read_text(encoding="utf-8"))
        seconds = {name: _positive(cost["whole_s"]) for name, cost in content["stages"].items()}
        return seconds, f"{content['machine']}, {content['date']}"
    return {}, ""


def _read(line: str) -> Iterator[Cost]:
    with contextlib.suppress(ValueError, TypeError, LookupError):
        content = json.loads(line)
        content = {
            "whole_s": content["seconds"],
            "is_resumed": False,
            "at": 0.0,
            **content,
        }  # as an older version left it
        numbers = {name: _positive(content[name]) for name in ("seconds", "whole_s", "peak_mib", "at")}
        yield Cost(**{**content, "stage": str(content["stage"]), **numbers})


def _positive(number: Any) -> float:
    """Raises ValueError or TypeError of what is no number of seconds."""
    if not math.isfinite(number) or number < 0:
        raise ValueError(number)
    return float(number)
