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
from posttrain.evals.significance import Outcomes, corrected, difference, share_interval
from posttrain.report.outcomes import packed, read_outcomes, unpacked
from posttrain.report.table import points

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
    results = run_arms(_arms(), _figures, RESAMPLING_JSON)
    for name, result in results.items():
        print(f"{name:14} {_shown(result['all']):>22} {_shown(result['rare']):>22}")
    for names, baseline in ((("smote", "duplicate"), "none"), (("hybrid", "loss_topk", "diversity"), "random")):
        for tasks in ("all", "rare"):
            print("\n".join(verdicts(results, names, baseline, tasks)))


def verdicts(results: Mapping[str, Any], names: Sequence[str], baseline: str, tasks: str) -> list[str]:
    """A line for each way against a baseline, over seeds, as a family; of the arms whose plays of
    each task are recorded."""
    runs = {
        way: [won for seed in SEEDS if (won := unpacked(results.get(f"{way}_{seed}", {}).get(tasks, {})))]
        for way in (baseline, *names)
    }
    compared = [way for way in names if runs[way] and runs[baseline]]
    found = corrected([difference(runs[baseline], runs[way]) for way in compared])
    return [
        f"{way} against {baseline}, {tasks} tasks: {points(one.estimate, one.low, one.high)}: {one.advice}"
        for way, one in zip(compared, found, strict=True)
    ]


def _figures(copy: Path, _: Arm) -> dict[str, Any]:
    rare = rare_cells(read_report(copy, "resample_data/summary.json")["cells"])
    lines = (copy / "reports" / "evaluate" / "sft.tasks.jsonl").read_text(encoding="utf-8").splitlines()
    cells = {record["task_id"]: record["cell"].rpartition("/")[0] for record in map(json.loads, lines)}
    outcomes = read_outcomes(copy, "sft")
    return {
        "all": _success(outcomes),
        "rare": _success({name: won for name, won in outcomes.items() if cells[name] in rare}),
    }


def rare_cells(cells: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Of `kind/market/language`, from counts of `kind/market/language/heaviness`."""
    counts = Counter[str]()
    for cell, count in cells.items():
        counts[cell.rpartition("/")[0]] += count["validated"]
    return {cell for cell, count in counts.items() if count < RARE_FRAC * max(counts.values())}


def _success(outcomes: Outcomes) -> dict[str, Any]:
    num_successes, num = sum(outcomes.values()), len(outcomes)
    low, high = share_interval(num_successes, num)
    return {
        "success_rate": round(num_successes / num, 4),
        "ci_low": round(low, 4),
        "ci_high": round(high, 4),
        "num_tasks": num,
        **packed(outcomes),
    }


def _shown(figures: Mapping[str, float]) -> str:
    return f"{figures['success_rate']:.3f} ({figures['ci_low']:.3f} … {figures['ci_high']:.3f})"


if __name__ == "__main__":
    main()
