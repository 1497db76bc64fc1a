"""Estimates how long stages take, and prints how far a stage and the run around it are.

The forecast of a stage is its last run in this tree, else the one committed beside the outputs, in
proportion to the knobs that its time is proportional to (steps, tasks). `posttrain run` writes it
to a file which the environment names, so that each stage prints the run's share and time left
beside its own; a plain `dvc repro` prints the stage's alone."""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.provenance.costs import last_runs, read_costs
from posttrain.provenance.fingerprint import PARAMS_FILE, value_at
from posttrain.provenance.lockfile import lock_entries, replace_file
from posttrain.provenance.run_records import entry_key, read_all_records
from posttrain.runtime.plain_yaml import read_yaml
from posttrain.runtime.state import state_dir

VARIABLE = "POSTTRAIN_RUN"
RUN = "run.json"  # below the state folder
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


def read_forecast(root: Path) -> dict[str, float]:
    """About how many seconds each stage takes with the tree's present knobs. A run whose knobs are
    not those of `dvc.lock` counts as it was."""
    entries, knobs = lock_entries(root), read_yaml(root / PARAMS_FILE)
    runs = read_all_records(root) | last_runs(read_costs(root))
    found = {}
    for stage, cost in runs.items():
        entry = entries.get(stage, {})
        found[stage] = cost.whole_s * (_work_ratio(entry, stage, knobs) if entry_key(entry) == cost.key else 1.0)
    return found


def run_environment(seconds: Mapping[str, float | None], root: Path) -> dict[str, str]:
    """Variables for the processes of a run of the tree at `root`. `seconds`: the stages that it
    will run, in their order, None where nobody knows how long one takes."""
    file = state_dir(root) / RUN  # not the variable itself: a run may have hundreds of stages
    replace_file(file, json.dumps(dict(seconds)))
    return {VARIABLE: str(file.resolve())}


def read_run_forecast(environment: Mapping[str, str] = os.environ) -> dict[str, float | None]:
    """Seconds by stage of the run around this process; empty without one."""
    try:
        seconds: dict[str, float | None] = json.loads(Path(environment[VARIABLE]).read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError):
        return {}
    return seconds


def run_progress(seconds: Mapping[str, float | None], stage: str, share: float, left_s: float | None) -> str:
    """`stage 6 of 14, 34 % of the run, 8 min left`, of a stage whose `share` is done and which
    itself needs `left_s` more (None: not known). Empty where the run has no such stage, the stage's
    place alone where some stage's time is not known."""
    names, times = list(seconds), [one for one in seconds.values() if one is not None]
    if stage not in names:
        return ""
    place = names.index(stage)
    if len(times) < len(names):
        return f"stage {place + 1} of {len(names)}"
    own_s = (1 - share) * times[place] if left_s is None else left_s
    percent = 100 * (sum(times[:place]) + share * times[place]) / max(sum(times), 1e-9)
    left = duration(own_s + sum(times[place + 1 :]))
    return f"stage {place + 1} of {len(names)}, {percent:.0f} % of the run, {left} left"


class Progress:
    """Prints progress lines of one stage: rewritten in place on a terminal, a new line every few
    seconds elsewhere.

    A stage may count several loops one after the other; the furthest is its share of the run.
    """

    def __init__(self, seconds: Mapping[str, float | None] | None = None) -> None:
        self._seconds = read_run_forecast() if seconds is None else seconds
        self._is_terminal = sys.stderr.isatty()
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
        of_run = run_progress(self._seconds, stage, self._share, left_s)
        self._print("  ".join(filter(None, [f"[{stage}] {done}/{total}", f"{rate:.1f}/s", left, of_run, note])))

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
    """Present work over that of the run in an entry of `dvc.lock`: 2 of twice the steps."""
    then, ratio = (entry.get("params") or {}).get(PARAMS_FILE) or {}, 1.0
    for key in _WORK.get(stage.partition("@")[0], ()):
        # An entry has whole sections (`train_sft`) or single keys (`evaluate.num_samples`).
        declared = next((one for one in then if f"{key}.".startswith(f"{one}.")), None)
        if declared is None:
            continue
        rest = key.removeprefix(declared).removeprefix(".")
        before, now = value_at(then[declared], rest) if rest else then[declared], value_at(knobs, key)
        if all(isinstance(number, int | float) and number > 0 for number in (before, now)):
            ratio *= now / before
    return ratio
