"""Training curves of a setting: mean over its seeds by step, lowest and highest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from posttrain.report.comparison.runs import CURVES
from posttrain.report.comparison.settings import Setting

MAX_POINTS = 400  # of a curve on the page; more are thinned out evenly


@dataclass(frozen=True, slots=True)
class Chart:
    """`key` is a metric's name in the lines of the training `source`."""

    source: str
    key: str
    title: str
    is_share: bool = False


CHARTS = (
    Chart("policy", "reward_mean", "Mean reward"),
    Chart("policy", "strict_success", "Strict success of the sampled episodes", is_share=True),
    Chart("policy", "success", "Success of the sampled episodes", is_share=True),
    Chart("policy", "reward_std", "Reward spread within groups (reward_std)"),
    Chart("policy", "reward_std_batch", "Reward spread over the batch (reward_std_batch)"),
    Chart("policy", "frac_reward_zero_std_all_bad", "Groups that all failed", is_share=True),
    Chart("policy", "frac_reward_zero_std_all_good", "Groups that all succeeded", is_share=True),
    Chart("policy", "frac_reward_zero_std_other", "Other groups of equal rewards", is_share=True),
    Chart("policy", "frac_tokens_nonzero_advantage", "Tokens with an advantage", is_share=True),
    Chart("policy", "entropy", "Entropy, nats per token"),
    Chart("policy", "kl", "KL to the start, nats per token"),
    Chart("policy", "length", "Tokens per episode"),
    Chart("policy", "turns", "Turns per episode"),
    Chart("policy", "tool_failures", "Tool calls that failed", is_share=True),
    Chart("policy", "loss", "Preference loss"),
    Chart("policy", "pair_accuracy", "Pairs ordered rightly", is_share=True),
    Chart("SFT", "loss", "Fine-tuning: loss on training rows"),
    Chart("SFT", "eval_loss", "Fine-tuning: loss on dev rows"),
)


def drawn_charts(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """The charts for which some setting has numbers, in the order of CHARTS.

    Each has `title`, `is_share`, and `curves`: for each setting its `name`, `steps` (N), `mean`
    (N), and `low` and `high` (N) over its seeds, where it has several; empty lists where it has no
    numbers. A step counts the seeds that have it. `resumed`: the steps after which some run was
    gone on with."""
    charts = []
    for chart in CHARTS:
        curves = [_curve(setting, chart) for setting in settings]
        if any(curve["steps"] for curve in curves):
            charts.append({"title": chart.title, "is_share": chart.is_share, "curves": curves})
    return charts


def _curve(setting: Setting, chart: Chart) -> dict[str, Any]:
    by_step: dict[int, list[float]] = {}
    resumed: set[int] = set()
    num_curves = 0
    for run in setting.counted or setting.runs[:1]:
        numbers = [
            (line["step"], value) for line in run.curves[chart.source] if _is_number(value := line.get(chart.key))
        ]
        num_curves += bool(numbers)
        if numbers and (cost := run.costs.get(_stage_of(chart))) is not None:
            resumed.update(cost.resumed_at)
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


def _stage_of(chart: Chart) -> str:
    """A stage's reports lie in a folder of its name."""
    return Path(CURVES[chart.source]).parent.name


def _thinned(steps: list[int]) -> list[int]:
    """The last one stays."""
    stride = -(-len(steps) // MAX_POINTS)
    return steps[::-1][::stride][::-1] if stride > 1 else steps


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: float) -> float:
    """Four digits: more are not seen, and a page holds many."""
    return float(f"{value:.4g}")
