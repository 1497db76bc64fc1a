"""Estimates how long stages take, and prints how far a stage and the run around it are.

A forecast is the last known run of each stage: of this tree, else the one that is committed beside
the outputs. Its knobs stand in `dvc.lock`; where a stage's work is proportional to some (steps,
tasks), so is its time. Nothing is known of the speed of another kind of machine: the forecast is a
range there. `posttrain run` writes the forecast of the stages that it will run to a file which the
environment names, so that each prints the run's share and time left beside its own; a plain
`dvc repro` prints the stage's alone.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from posttrain.provenance.costs import Cost, last_runs, num_gpus_here, processor_kind, read_costs
from posttrain.provenance.fingerprint import PARAMS_FILE, value_at
from posttrain.provenance.lockfile import lock_entries, replace_file
from posttrain.provenance.run_records import entry_key, read_all_records
from posttrain.runtime.plain_yaml import read_yaml
from posttrain.runtime.state import state_dir

VARIABLE = "POSTTRAIN_RUN"
RUN = "run.json"  # below the state folder
_SPREAD = 2.0  # times as fast or as slow: a guess; two machines with two cores have lain 1.8 apart so far
_ENOUGH_S = 5.0  # of finished stages, to tell the pace of a run
_ONLINE = "train_policy.algorithm"
_WORK = {  # the knobs that a stage's time is proportional to
    "generate_data": ("world.num_sft_tasks",),
    "prepare_model": ("prepare_model.warmup_steps", "prepare_model.warmup_batch_size"),
    "train_sft": ("train_sft.max_steps", "train_sft.batch_size"),
    "sample_preferences": ("sample_preferences.num_tasks", "sample_preferences.num_samples"),
    "train_reward_model": ("train_reward_model.max_steps", "train_reward_model.batch_size"),
    "train_policy": (f"{_ONLINE}.max_steps", f"{_ONLINE}.tasks_per_step", f"{_ONLINE}.group_size"),
    "evaluate": ("world.num_test_tasks", "evaluate.num_samples"),
}
_TERMINAL_EVERY_S, _LOG_EVERY_S = 0.5, 5.0
_CLEAR = "\x1b[2K"  # the line that the cursor stands in


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds by stage, from runs of this tree and from committed ones. `whose`: the machine of
    these, and when it ran; `spread`: how many times as long or as short they may be here."""

    here: Mapping[str, float]
    committed: Mapping[str, float]
    whose: str
    spread: float


def read_forecast(root: Path) -> Forecast:
    """Forecast for the tree with its present knobs."""
    entries, knobs = lock_entries(root), read_yaml(root / PARAMS_FILE)
    own, committed = last_runs(read_costs(root)), read_all_records(root)

    def seconds(runs: Mapping[str, Cost]) -> dict[str, float]:
        return {
            stage: cost.whole_s * (_work_ratio(entry, stage, knobs) if entry_key(entry) == cost.key else 1.0)
            for stage, cost in runs.items()
            for entry in [entries.get(stage, {})]
        }

    of = [f"{cost.processor or 'an unknown processor'}, {cost.num_threads} threads" for cost in committed.values()]
    last = max((cost.at for cost in committed.values()), default=0.0)
    whose = f"{', '.join(sorted(set(of)))}, {datetime.fromtimestamp(last, UTC):%Y-%m-%d}" if committed else ""
    is_alike = all(
        cost.processor == processor_kind()
        and cost.num_threads <= (os.cpu_count() or 1)
        and cost.num_gpus == num_gpus_here(os.environ)
        for cost in committed.values()
    )
    return Forecast(seconds(own), seconds(committed), whose, 1.0 if is_alike else _SPREAD)


@dataclass(frozen=True, slots=True)
class RunForecast:
    """Forecast of one `posttrain run`. `seconds`: about how long each stage takes, in their order,
    None where nobody knows. `pace`: how many times as long the stages took that have ended in
    it."""

    seconds: Mapping[str, float | None]
    pace: float = 1.0

    def progress(self, stage: str, share: float, left_s: float | None) -> str:
        """`stage 6 of 14, 34 % of the run, 8 min left`, of a stage whose `share` is done and which
        itself needs `left_s` more (None: not known). Empty where the run has no such stage, the
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
    """Variables for the processes of a run of the tree at `root` that begins now."""
    file = state_dir(root) / RUN
    replace_file(file, json.dumps({"began": time.time(), "seconds": dict(seconds)}))
    return {VARIABLE: str(file.resolve())}


def read_run_forecast(environment: Mapping[str, str] = os.environ, root: Path = Path()) -> RunForecast:
    """Forecast that the environment names; one without stages where it names none, or the file is
    not there, as on another machine."""
    try:
        content = json.loads(Path(environment[VARIABLE]).read_text(encoding="utf-8"))
        seconds: dict[str, float | None] = content["seconds"]
    except (KeyError, OSError, ValueError, TypeError):
        return RunForecast({})
    ended = [cost for cost in read_costs(root) if cost.at >= content["began"]]
    return RunForecast(seconds, _pace(seconds, ended))


class Progress:
    """Prints progress lines of one stage: rewritten in place on a terminal, a new line every few
    seconds elsewhere. Flows parse them (`posttrain/pipeline/run_status.py`).

    A stage may count several loops one after the other; the furthest is its share of the run.
    """

    def __init__(self, run: RunForecast | None = None) -> None:
        self._run = run or read_run_forecast()
        self._is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_s: float | None = None
        self._begun, self._began_s = 0, 0.0  # of this loop: one that is resumed does not begin at 0
        self._last, self._share = (0, 0), 0.0

    def show(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Print `[stage] done/total  rate  time left  the run's share and time left  note`, not
        more often than a reader needs, and always at the end of a loop."""
        now_s = time.monotonic()
        if self._last[1] != total or done < self._last[0]:
            self._begun, self._began_s = done, now_s
        elif done == self._last[0] == total:
            return  # a trainer's last step and its end
        self._last, self._share = (done, total), max(self._share, done / total if total else 0.0)
        every_s = _TERMINAL_EVERY_S if self._is_terminal else _LOG_EVERY_S
        if done < total and self._shown_s is not None and now_s - self._shown_s < every_s:
            return
        self._shown_s = now_s
        rate = (done - self._begun) / max(now_s - self._began_s, 1e-9)
        left_s = (total - done) / rate if rate > 0 else None
        left = "…" if left_s is None else f"{left_s:.0f} s left"
        parts = [f"[{stage}] {done}/{total}", f"{rate:.1f}/s", left, self._run.progress(stage, self._share, left_s)]
        self._print("  ".join(filter(None, [*parts, note])))

    def end(self) -> None:
        """Leave a terminal's line empty for what comes after."""
        if self._is_terminal and self._shown_s is not None:
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    def _print(self, line: str) -> None:
        if self._is_terminal:  # cut, because a line that is broken in two cannot be rewritten
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            print(f"{_CLEAR}{line[: width - 1]}", end="\r", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """`40 s`, `8 min`, `2 h 05 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"


def _work_ratio(entry: Mapping[str, Any], stage: str, knobs: Any) -> float:
    """Present work over the work of the run that an entry of `dvc.lock` records: 2 of twice the
    steps."""
    then, ratio = (entry.get("params") or {}).get(PARAMS_FILE) or {}, 1.0
    for key in _WORK.get(stage.partition("@")[0], ()):
        declared = next((one for one in then if key == one or key.startswith(f"{one}.")), None)
        if declared is None:
            continue
        rest = key.removeprefix(declared).removeprefix(".")
        before, now = value_at(then[declared], rest) if rest else then[declared], value_at(knobs, key)
        if all(isinstance(number, int | float) and number > 0 for number in (before, now)):
            ratio *= now / before
    return ratio


def _pace(seconds: Mapping[str, float | None], ended: Sequence[Cost]) -> float:
    """Time taken over time forecast; 1 until enough has run to tell."""
    taken_s = expected_s = 0.0
    for cost in ended:
        expected = seconds.get(cost.stage)
        if expected is not None and not cost.is_resumed:
            taken_s, expected_s = taken_s + cost.whole_s, expected_s + expected
    return taken_s / expected_s if expected_s >= _ENOUGH_S else 1.0
