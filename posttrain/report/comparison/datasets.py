"""What each setting was trained on: rows from stage to stage, and the classes that training saw."""

from collections.abc import Callable, Sequence

from posttrain.report.comparison.runs import Run
from posttrain.report.comparison.settings import Setting
from posttrain.report.sources import ResamplingSummary, ValidationSummary

Rows = list[tuple[str, list[int | None]]]


def row_counts(settings: Sequence[Setting]) -> Rows:
    """For each step its number of rows in every setting, None where a branch does not say; a
    setting's first run stands for it. Steps that no branch tells of are left out."""

    def validated(count: Callable[[ValidationSummary], int]) -> Callable[[Run], int | None]:
        return lambda run: count(run.validation) if run.validation else None

    def resampled(count: Callable[[ResamplingSummary], int]) -> Callable[[Run], int | None]:
        return lambda run: count(run.resampling) if run.resampling else None

    def quarantined(rule: str) -> Callable[[Run], int | None]:
        return lambda run: _quarantined(run).get(rule)

    steps = [
        ("demonstrations", validated(lambda one: one.num_demonstrations)),
        ("kept by validation", validated(lambda one: one.num_kept)),
        ("after the quality filter", resampled(lambda one: one.num_after_quality)),
        ("in the coreset", resampled(lambda one: one.num_after_coreset)),
        ("played anew through the world", resampled(lambda one: one.num_realised)),
        ("repeated", resampled(lambda one: one.num_duplicated)),
        ("that training saw", resampled(lambda one: one.num_after)),
    ]
    rules = dict.fromkeys(rule for setting in settings for rule in _quarantined(setting.runs[0]))
    steps[2:2] = [(f"in quarantine by {rule}", quarantined(rule)) for rule in rules]
    rows = [(name, [count(setting.runs[0]) for setting in settings]) for name, count in steps]
    return [(name, counts) for name, counts in rows if any(count is not None for count in counts)]


def class_counts(settings: Sequence[Setting]) -> Rows:
    """For each class the rows that training saw, the most frequent of the baseline first."""
    cells = [setting.runs[0].resampling.cells if setting.runs[0].resampling else {} for setting in settings]
    names = dict.fromkeys(name for one in cells for name in one)
    rows = [(name, [one[name].after if name in one else None for one in cells]) for name in names]
    return sorted(rows, key=lambda row: (-(row[1][0] or 0), row[0]))


def _quarantined(run: Run) -> dict[str, int]:
    return run.validation.quarantined_by_rule if run.validation else {}
