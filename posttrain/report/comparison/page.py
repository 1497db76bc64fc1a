"""Renders a comparison as one HTML file, with the same bytes for the same commits."""

from collections.abc import Sequence
from pathlib import Path

from posttrain.evals.significance import LEVEL, share_interval
from posttrain.report.comparison.curves import drawn_charts
from posttrain.report.comparison.settings import Setting
from posttrain.report.comparison.stages import class_counts, data_files, row_counts, stage_differences
from posttrain.report.comparison.tables import (
    amount,
    comparison_notes,
    differs_in,
    has_strict,
    pass_hat_4,
    spent_columns,
    verdict,
)
from posttrain.report.comparison.transcripts import task_pairs
from posttrain.report.html import rendered
from posttrain.report.run_reader import CostRate, Measure, Success
from posttrain.report.table import percent, percent_range, points
from posttrain.tracking.alarms import read_alarms

Share = tuple[float, float, float]  # with its interval

_TEMPLATE = Path(__file__).with_name("page.html")


def comparison_page(settings: Sequence[Setting]) -> str:
    names = [{"name": setting.name} for setting in settings]
    data = {"settings": names, "charts": list(drawn_charts(settings)), "tasks": task_pairs(settings)}
    return rendered(
        _TEMPLATE,
        data=data,
        title=_title(settings),
        settings=settings,
        notes=comparison_notes(settings),
        level=f"{100 * LEVEL:g} % interval",
        differs_in=differs_in,
        spent_columns=spent_columns(settings),
        amount=amount,
        has_resumed=any(cost.resumed_at for one in settings for run in one.runs for cost in run.costs.values()),
        pass_hat_4=pass_hat_4,
        has_strict=has_strict(settings),
        measure=settings[0].measure.value,
        percent=percent,
        percent_range=percent_range,
        points=points,
        verdict=verdict,
        alarms=[
            (run.name, *alarm) for one in settings for run in one.runs for alarm in read_alarms(run.curves["policy"])
        ],
        labels=[*_harms(settings), *_labels(settings)],
        data_files=data_files(settings),
        row_counts=row_counts(settings),
        class_counts=class_counts(settings),
        stages=stage_differences(settings),
    )


def _title(settings: Sequence[Setting]) -> str:
    others = [setting.name for setting in settings[1:]]
    named = ", ".join(others) if 0 < len(others) < 3 else f"{len(others)} settings"
    return f"{named} against {settings[0].name}" if others else settings[0].name


def _labels(settings: Sequence[Setting]) -> list[tuple[str, list[tuple[str, int, list[Share | None]]]]]:
    """For each label its values, each with its number of tasks and the success of every setting, as
    they are compared, over the episodes of all its runs."""
    by: dict[str, dict[str, list[list[Success]]]] = {}
    for index, setting in enumerate(settings):
        for run in setting.runs:
            for label, values in (run.evaluation.by if run.evaluation else {}).items():
                for value, success in values.items():
                    cells = by.setdefault(label, {}).setdefault(value, [[] for _ in settings])
                    cells[index].append(success)
    measure = settings[0].measure
    return [
        (
            label,
            [
                (value, max(one.num_tasks for own in cells for one in own), [_share(own, measure) for own in cells])
                for value, cells in sorted(values.items())
            ],
        )
        for label, values in by.items()
    ]


def _harms(settings: Sequence[Setting]) -> list[tuple[str, list[tuple[str, int, list[Share | None]]]]]:
    """The same of the costs of `posttrain/worlds/catalog.py`: the share of tasks with harm."""
    by: dict[str, list[list[CostRate]]] = {}
    for index, setting in enumerate(settings):
        for run in setting.runs:
            for name, cost in (run.evaluation.costs if run.evaluation else {}).items():
                by.setdefault(name, [[] for _ in settings])[index].append(cost)

    def share(runs: Sequence[CostRate]) -> Share | None:
        if not runs:
            return None
        mean, num_tasks = sum(one.rate for one in runs) / len(runs), min(one.num_tasks for one in runs)
        return mean, *share_interval(mean * num_tasks, num_tasks)

    rows = [
        (name, max(one.num_tasks for own in cells for one in own), list(map(share, cells)))
        for name, cells in by.items()
    ]
    return [("harm", rows)] if rows else []


def _share(runs: Sequence[Success], measure: Measure) -> Share | None:
    """Mean with Wilson's interval over the tasks of one run: episodes of a task by other seeds are
    no new tasks."""
    if not runs:
        return None
    mean = sum((one.strict if measure is Measure.STRICT else one.plain).share for one in runs) / len(runs)
    num_tasks = min(one.num_tasks for one in runs)
    return mean, *share_interval(mean * num_tasks, num_tasks)
