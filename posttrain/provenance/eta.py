"""Tells a stage how far the whole run is that it is a part of: `posttrain run` writes down which
stages it will run and about how long each takes, and names the file in the environment, so that
each can tell the run's share and time left beside its own.

Under a plain `dvc repro` nobody says so, and a stage tells its own alone.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.provenance.costs import Cost, read_costs
from posttrain.provenance.lockfile import replace_file
from posttrain.runtime.state import state_dir

VARIABLE = "POSTTRAIN_RUN"
RUN = "run.json"  # below the state folder
_ENOUGH_S = 5.0


@dataclass(frozen=True, slots=True)
class WholeRun:
    """`seconds`: about how long each stage takes, in their order, None where nobody knows. `pace`:
    how many times as long those took that have ended in this run."""

    seconds: Mapping[str, float | None]
    pace: float = 1.0

    def words(self, stage: str, share: float, left_s: float | None) -> str:
        """`stage 6 of 14, 34 % of the run, 8 min left`, of a stage whose `share` is done and which
        itself needs `left_s` more (None: not known). Empty where the run knows no such stage, the
        stage's place alone where some stage's time is not known."""
        names, times = list(self.seconds), [seconds for seconds in self.seconds.values() if seconds is not None]
        if stage not in names:
            return ""
        place = names.index(stage)
        if len(times) < len(names):
            return f"stage {place + 1} of {len(names)}"
        done_s = sum(times[:place]) + share * times[place]
        own_s = self.pace * (1 - share) * times[place] if left_s is None else left_s
        all_left_s = own_s + self.pace * sum(times[place + 1 :])
        percent = 100 * done_s / max(sum(times), 1e-9)
        return f"stage {place + 1} of {len(names)}, {percent:.0f} % of the run, {duration(all_left_s)} left"


def run_environment(seconds: Mapping[str, float | None], root: Path) -> dict[str, str]:
    """For the processes of a run of the tree at `root` that begins now."""
    file = state_dir(root) / RUN
    replace_file(file, json.dumps({"began": time.time(), "seconds": dict(seconds)}))
    return {VARIABLE: str(file.resolve())}


def read_whole_run(environment: Mapping[str, str] = os.environ, root: Path = Path()) -> WholeRun:
    """What the environment says; a run without stages where it says nothing, or the file is not
    there, as on another machine."""
    try:
        said = json.loads(Path(environment[VARIABLE]).read_text(encoding="utf-8"))
        seconds: dict[str, float | None] = said["seconds"]
    except (KeyError, OSError, ValueError, TypeError):
        return WholeRun({})
    ended = [cost for cost in read_costs(root) if cost.at >= said["began"]]
    return WholeRun(seconds, _pace(seconds, ended))


def duration(seconds: float) -> str:
    """`40 s`, `8 min`, `2 h 05 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def _pace(seconds: Mapping[str, float | None], ended: Sequence[Cost]) -> float:
    """1 until enough has run to tell."""
    taken_s = expected_s = 0.0
    for cost in ended:
        expected = seconds.get(cost.stage)
        if expected is not None and not cost.is_resumed:
            taken_s, expected_s = taken_s + cost.whole_s, expected_s + expected
    return taken_s / expected_s if expected_s >= _ENOUGH_S else 1.0
