"""Measures what resampling earns: held-out success after SFT, on all tasks and on rare cells, with
every kind of oversampling and of coreset.

Into `reports/resampling.json`. The arms of one question differ in one knob and train for the same
steps. `rare` are the test tasks of a kind, market and language of which the demonstrations hold
less than half as many as of the most frequent. Coresets keep a fifth and are not grown again, so
that only the choice of rows differs. `python -m benchmarks.resampling [--jobs N] [ARM …]` runs only
those.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arms import REPOSITORY, Arm, read_report, run_arms
from posttrain.evals.intervals import bootstrap_interval

RESAMPLING_JSON = REPOSITORY / "reports" / "resampling.json"
SEEDS = (1, 2, 3)
RARE_FRAC = 0.5  # of the most frequent cell
KEEP_FRAC = 0.2
TARGETS = ("evaluate@sft",)
SHORT = {"evaluate.num_samples": 4}  # nothing here is read from the samples


def _arms() -> list[Arm]:
    oversampling = [
        Arm(f"{type_}_{seed}", {"seed": seed, **SHORT, "resample_data.oversample.type": type_}, TARGETS)
        for seed in SEEDS
        for type_ in ("smote", "duplicate", "none")
    ]
    fifth = {**SHORT, "resample_data.oversample.type": "none", "resample_data.coreset.keep_frac": KEEP_FRAC}
    coresets = [
        Arm(f"{strategy}_{seed}", {"seed": seed, **fifth, "resample_data.coreset.strategy": strategy}, TARGETS)
        for seed in SEEDS
        for strategy in ("hybrid", "loss_topk", "diversity", "random")
    ]
    return [*oversampling, *coresets]


def main() -> None:
    print(f"{'arm':14} {'all':>22} {'rare':>22}")
    for name, result in run_arms(_arms(), _figures, RESAMPLING_JSON).items():
        print(f"{name:14} {_shown(result['all']):>22} {_shown(result['rare']):>22}")


def _figures(copy: Path, _: Arm) -> dict[str, Any]:
    rare = rare_cells(read_report(copy, "resample_data/summary.json")["cells"])
    lines = (copy / "reports" / "evaluate" / "sft.tasks.jsonl").read_text(encoding="utf-8").splitlines()
    test = [record for record in map(json.loads, lines) if record["split"] == "test"]
    return {
        "all": _success(test),
        "rare": _success([record for record in test if record["cell"].rpartition("/")[0] in rare]),
    }


def rare_cells(cells: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Of `kind/market/language`, from counts of `kind/market/language/heaviness`."""
    counts = Counter[str]()
    for cell, count in cells.items():
        counts[cell.rpartition("/")[0]] += count["validated"]
    return {cell for cell, count in counts.items() if count < RARE_FRAC * max(counts.values())}


def _success(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    successes = [float(record["success"]) for record in records]
    low, high = bootstrap_interval(successes, level=0.95, num_bootstrap=2000, seed=1)
    return {
        "success_rate": round(sum(successes) / len(successes), 4),
        "ci_low": round(low, 4),
        "ci_high": round(high, 4),
        "num_tasks": len(successes),
    }


def _shown(figures: Mapping[str, float]) -> str:
    return f"{figures['success_rate']:.3f} ({figures['ci_low']:.3f} … {figures['ci_high']:.3f})"


if __name__ == "__main__":
    main()
