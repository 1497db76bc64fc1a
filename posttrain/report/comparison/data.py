"""Compares the data of settings: rows from stage to stage, classes that training saw, and the
hashes of the files. A setting's first run stands for it."""

from collections.abc import Sequence

from posttrain.report.comparison.runs import RunResults
from posttrain.report.comparison.settings import Setting

RowCounts = list[tuple[str, list[int | None]]]

_RESAMPLED = {
    "after the quality filter": "num_after_quality",
    "in the coreset": "num_after_coreset",
    "regenerated through the world": "num_realised",
    "repeated": "num_duplicated",
    "that training saw": "num_after",
}
_HASH_DIGITS = 7


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
