"""Data and stages of settings: rows from stage to stage, classes that training saw, hashes of
files; what a setting shares with the baseline, and how long the rest took. A setting's first run
stands for it."""

from collections.abc import Sequence

from posttrain.provenance.code_version import parse_version
from posttrain.provenance.costs import Cost
from posttrain.provenance.eta import duration
from posttrain.report.comparison.runs import LockedStage, RunResults
from posttrain.report.comparison.settings import Setting
from posttrain.report.run_page import ended

RowCounts = list[tuple[str, list[int | None]]]

_RESAMPLED = {
    "after the quality filter": "num_after_quality",
    "in the coreset": "num_after_coreset",
    "regenerated through the world": "num_realised",
    "repeated": "num_duplicated",
    "that training saw": "num_after",
}
_HASH_DIGITS = 7
_MAX_NAMED = 3


def stage_differences(settings: Sequence[Setting]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """For each stage a cell on every setting: a word (`same`, what it read that was not the same as
    in the baseline, or that it did not run; empty of the baseline, the first), how long it took,
    and where that was. A setting's first run stands for it."""
    runs = [setting.runs[0] for setting in settings]
    names = list(dict.fromkeys(name for run in runs for name in run.stages))
    baseline = runs[0].stages
    return [
        (
            name,
            [
                (
                    _word(baseline.get(name), run.stages.get(name)) if index else "",
                    *((duration(cost.all_s), _facts(cost)) if (cost := run.costs.get(name)) else ("", "")),
                )
                for index, run in enumerate(runs)
            ],
        )
        for name in names
    ]


def _facts(cost: Cost) -> str:
    """`2026-11-23 21:05 UTC, 4cb9056, AMD, AVX-512, 2 threads, peak 812 MiB`."""
    threads = f"{cost.num_threads} thread{'s' * (cost.num_threads != 1)}" if cost.num_threads else ""
    gpus = f"{cost.num_gpus} GPU{'s' * (cost.num_gpus != 1)}" if cost.num_gpus else ""
    resumed = f"resumed after step {', '.join(map(str, cost.resumed_at))}" if cost.resumed_at else ""
    version = parse_version(cost.version).short
    facts = [ended(cost), version, cost.processor, threads, gpus, f"peak {cost.peak_mib:,.0f} MiB", resumed]
    return ", ".join(filter(None, facts))


def _word(before: LockedStage | None, after: LockedStage | None) -> str:
    if after is None:
        return "did not run"
    if before is None:
        return "ran here only"
    paths = [path for path in {**before.deps, **after.deps} if before.deps.get(path) != after.deps.get(path)]
    if paths:
        named = ", ".join(paths[:_MAX_NAMED])
        return f"ran for {named}{f' and {len(paths) - _MAX_NAMED} more' if len(paths) > _MAX_NAMED else ''}"
    return "same" if before.outs == after.outs else "ran for its knobs"


def row_counts(settings: Sequence[Setting]) -> RowCounts:
    """Number of rows at each step in every setting, None where a branch does not say; without the
    steps of which no branch says any."""
    runs = [setting.runs[0] for setting in settings]
    rules = dict.fromkeys(rule for run in runs for rule in _quarantined(run))
    rows = [
        ("demonstrations", [getattr(run.validation, "num_demonstrations", None) for run in runs]),
        ("kept by validation", [getattr(run.validation, "num_kept", None) for run in runs]),
        *((f"in quarantine by {rule}", [_quarantined(run).get(rule) for run in runs]) for rule in rules),
        *((title, [getattr(run.resampling, field, None) for run in runs]) for title, field in _RESAMPLED.items()),
    ]
    return [(name, counts) for name, counts in rows if any(count is not None for count in counts)]


def class_counts(settings: Sequence[Setting]) -> RowCounts:
    """Rows of each class that training saw, the most frequent of the baseline first."""
    cells = [setting.runs[0].resampling.cells if setting.runs[0].resampling else {} for setting in settings]
    names = dict.fromkeys(name for one in cells for name in one)
    rows = [(name, [one[name].after if name in one else None for one in cells]) for name in names]
    return sorted(rows, key=lambda row: (-(row[1][0] or 0), row[0]))


def _quarantined(run: RunResults) -> dict[str, int]:
    return run.validation.quarantined_by_rule if run.validation else {}


def data_files(settings: Sequence[Setting]) -> list[tuple[str, list[str]]]:
    """For each file the first digits of its MD5 in every setting; empty where a setting has no such
    file."""
    runs = [setting.runs[0].data for setting in settings]
    paths = sorted({path for data in runs for path in data})
    return [(path, [data.get(path, "")[:_HASH_DIGITS] for data in runs]) for path in paths]
