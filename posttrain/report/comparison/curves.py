"""Training curves of a setting: mean over its seeds by step, lowest and highest."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from posttrain.report.charts import DPO_CHARTS, GRPO_CHARTS, SFT_LOSS, SPREAD_CHARTS
from posttrain.report.comparison.runs import CURVES
from posttrain.report.comparison.settings import Setting

MAX_POINTS = 400  # of a curve on the page; more are thinned out evenly


def drawn_charts(settings: Sequence[Setting]) -> Iterator[dict[str, Any]]:
    """The charts of metrics for which some setting has numbers, one for each metric.

    Each has `title`, `is_share`, and `curves`: for each setting its `name`, `steps` (N), `mean`
    (N), and `low` and `high` (N) over its seeds, where it has several; empty lists where it has no
    numbers. A step counts the seeds that have it. `resumed`: the steps after which some run was
    resumed."""
    for source, charts in (("policy", {**GRPO_CHARTS, **SPREAD_CHARTS, **DPO_CHARTS}), ("SFT", SFT_LOSS)):
        for title, (metrics, options) in charts.items():
            for name, key in metrics.items():
                curves = [_curve(setting, source, key) for setting in settings]
                if any(curve["steps"] for curve in curves):
                    own = f"{title}: {name}" if len(metrics) > 1 else title
                    yield {"title": own, "is_share": "is_share" in options, "curves": curves}


def _curve(setting: Setting, source: str, key: str) -> dict[str, Any]:
    by_step: dict[int, list[float]] = {}
    resumed: set[int] = set()
    num_curves = 0
    stage = Path(CURVES[source]).parent.name  # a stage's reports lie in a folder of its name
    for run in setting.counted or setting.runs[:1]:
        numbers = [(line["step"], value) for line in run.curves[source] if _is_number(value := line.get(key))]
        num_curves += bool(numbers)
        if numbers and stage in run.costs:
            resumed.update(run.costs[stage].resumed_at)
        for step, number in numbers:
            by_step.setdefault(step, []).append(number)
    steps = _thinned(sorted(by_step))
    values = [by_step[step] for step in steps]
    return {
        "name": setting.name,
        "steps": steps,
        "mean": [_short(sum(one) / len(one)) for one in values],
        "low": [_short(min(one)) for one in values] if num_curves > 1 else [],
        "high": [_short(max(one)) for one in values] if num_curves > 1 else [],
        "resumed": sorted(resumed),
    }


def _thinned(steps: list[int]) -> list[int]:
    """Every n-th step, from the last one back."""
    stride = -(-len(steps) // MAX_POINTS)
    return steps[::-1][::stride][::-1] if stride > 1 else steps


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: float) -> float:
    """Round to four digits: more are not seen, and a page holds many."""
    return float(f"{value:.4g}")
