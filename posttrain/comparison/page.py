"""The comparison as one HTML file: it opens offline, asks nothing of anybody, and has the same
bytes for the same commits.

A content policy in the page allows no script but those whose hashes stand in it. What agents, users
and worlds wrote is put on the page by `textContent`, after `visible` has spelt out what would hide.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from posttrain.comparison.curves import drawn_charts
from posttrain.comparison.datasets import class_counts, row_counts
from posttrain.comparison.settings import Setting
from posttrain.comparison.significance import LEVEL, share_interval
from posttrain.comparison.stages import stage_differences
from posttrain.comparison.tables import comparison_json, comparison_notes, differs_in, pass_hat_4, points, verdict
from posttrain.comparison.transcripts import task_pairs
from posttrain.report.sources import Success
from posttrain.report.table import percent, percent_range
from posttrain.tracking.alarms import read_alarms
from posttrain.visible import visible_on_page

Share = tuple[float, float, float]  # with its interval

_FOLDER = Path(__file__).parent
_CHARTS, _CHARTS_STYLE = _FOLDER / "vendor" / "uPlot.iife.min.js", _FOLDER / "vendor" / "uPlot.min.css"


def comparison_page(settings: Sequence[Setting]) -> str:
    """The HTML text."""
    data = {**comparison_json(settings), "charts": drawn_charts(settings), "tasks": task_pairs(settings)}
    return _rendered(
        "page",
        title=_title(settings),
        settings=settings,
        notes=comparison_notes(settings),
        level=f"{100 * LEVEL:g} % interval",
        differs_in=differs_in,
        pass_hat_4=pass_hat_4,
        percent=percent,
        percent_range=percent_range,
        points=points,
        verdict=verdict,
        alarms=[
            (run.name, *alarm) for one in settings for run in one.runs for alarm in read_alarms(run.curves["policy"])
        ],
        labels=_labels(settings),
        row_counts=row_counts(settings),
        class_counts=class_counts(settings),
        stages=stage_differences(settings),
        data=_embedded(data),
    )


def dashboard_page() -> str:
    """The HTML text; what it shows, its script asks for."""
    return _rendered("dashboard")


def _rendered(name: str, **values: Any) -> str:
    """`NAME.html` with the charts' library and `NAME.js`, and a policy that lets nothing else
    run."""
    scripts = [path.read_text(encoding="utf-8") for path in (_CHARTS, _FOLDER / f"{name}.js")]
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=visible_on_page,
        loader=jinja2.FileSystemLoader(_FOLDER),
    )
    return environment.get_template(f"{name}.html").render(
        **values,
        scripts=[Markup(text) for text in scripts],  # noqa: S704  # our own files
        hashes=Markup(" ".join(_policy_hash(text) for text in scripts)),  # noqa: S704
        charts_style=Markup(_CHARTS_STYLE.read_text(encoding="utf-8")),  # noqa: S704
    )


def _title(settings: Sequence[Setting]) -> str:
    others = [setting.name for setting in settings[1:]]
    named = ", ".join(others) if 0 < len(others) < 3 else f"{len(others)} settings"
    return f"{named} against {settings[0].name}" if others else settings[0].name


def _labels(settings: Sequence[Setting]) -> list[tuple[str, list[tuple[str, int, list[Share | None]]]]]:
    """For each label its values, each with its number of tasks and the success of every setting,
    over the plays of all its runs."""
    by: dict[str, dict[str, list[list[Success]]]] = {}
    for index, setting in enumerate(settings):
        for run in setting.runs:
            for label, values in (run.evaluation.by if run.evaluation else {}).items():
                for value, success in values.items():
                    cells = by.setdefault(label, {}).setdefault(value, [[] for _ in settings])
                    cells[index].append(success)
    return [
        (
            label,
            [
                (value, max(one.num_tasks for cell in cells for one in cell), [_share(cell) for cell in cells])
                for value, cells in sorted(values.items())
            ],
        )
        for label, values in by.items()
    ]


def _share(runs: Sequence[Success]) -> Share | None:
    """Wilson's interval over the plays of one run: plays of a task by other seeds are no new
    tasks."""
    if not runs:
        return None
    mean = sum(one.success_rate for one in runs) / len(runs)
    num_tasks = min(one.num_tasks for one in runs)
    return mean, *share_interval(mean * num_tasks, num_tasks)


def _embedded(data: Mapping[str, Any]) -> Markup:
    """JSON that no HTML parser reads as more than text."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704


def _policy_hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
