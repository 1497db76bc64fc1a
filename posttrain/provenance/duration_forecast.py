"""About how long each stage will take, from the last run of it that is known: of this tree, else
the one that is committed beside the outputs.

The knobs of that run stand in `dvc.lock`. Where a stage's work is a multiple of one (steps, tasks),
its time is taken as the same multiple. Nothing is known of the speed of another kind of machine:
there a range is told.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from posttrain.provenance.costs import Cost, last_runs, num_gpus_here, read_costs
from posttrain.provenance.cpu_kind import processor_kind
from posttrain.provenance.fingerprint import PARAMS_FILE, value_at
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.run_records import entry_key, read_all_records
from posttrain.runtime.plain_yaml import read_yaml

_SPREAD = 2.0  # times as fast or as slow: a guess; two machines with two cores have lain 1.8 apart so far
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


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds by stage, from runs of this tree and from committed ones. `whose`: the machine of
    these, and when it ran; `spread`: how many times as long or as short they may be here."""

    here: Mapping[str, float]
    committed: Mapping[str, float]
    whose: str
    spread: float


def read_forecast(root: Path) -> Forecast:
    """Of the tree as it is now, with its present knobs."""
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


def _work_ratio(entry: Mapping[str, Any], stage: str, knobs: Any) -> float:
    """How many times the work of the run that an entry of `dvc.lock` records: 2 of twice the
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
