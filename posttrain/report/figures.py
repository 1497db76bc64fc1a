"""The charts of the report: which numbers of which file stand in which.

A chart is what `posttrain/report/page_parts.js` draws: a title, how its values are read, and
curves, each with `steps` (N) and `mean` (N), without a band because a run is one.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from posttrain.report.sources import DpoLine, GrpoLine, ReliabilityBin, SftLine

Line = TypeVar("Line", SftLine, GrpoLine, DpoLine)
Chart = dict[str, Any]
Curve = dict[str, Any]


def sft_charts(lines: Sequence[SftLine]) -> list[Chart]:
    """Loss in nats per agent token, on a scale of ratios."""
    return _with_points(
        _chart(
            "Fine-tuning: loss",
            _curve("training rows", lines, lambda line: line.loss),
            _curve("dev demonstrations", lines, lambda line: line.eval_loss),
            is_log=True,
        ),
        _chart(
            "Fine-tuning: loss by kind of token",
            _curve("reasoning", lines, lambda line: line.loss_reasoning),
            _curve("calls", lines, lambda line: line.loss_call),
            is_log=True,
        ),
    )


def grpo_charts(lines: Sequence[GrpoLine]) -> list[Chart]:
    """What the agent got better at, step by step."""
    return _with_points(
        _chart(
            "Success of the sampled episodes",
            *_strict_curve(lines),
            _curve("success", lines, lambda line: line.success),
            is_share=True,
        ),
        _chart("Reward", _curve("mean reward", lines, lambda line: line.reward_mean)),
        _chart(
            "Entropy and KL, nats per token",
            _curve("entropy", lines, lambda line: line.entropy),
            _curve("KL to the start", lines, lambda line: line.kl),
        ),
        _chart("Turns per episode", _curve("turns", lines, lambda line: line.turns)),
        _chart("Tokens per episode", _curve("tokens", lines, lambda line: line.length)),
    )


def spread_charts(lines: Sequence[GrpoLine]) -> list[Chart]:
    """How much the groups still teach: without spread inside a group there is no gradient from
    it."""
    return _with_points(
        _chart(
            "Standard deviation of the reward",
            _curve("within groups (reward_std)", lines, lambda line: line.reward_std),
            _curve("whole batch (reward_std_batch)", lines, lambda line: line.reward_std_batch),
        ),
        _chart(
            "Groups whose rewards are all equal",
            _curve("all (frac_reward_zero_std)", lines, lambda line: line.frac_reward_zero_std),
            _curve("all failed", lines, lambda line: line.frac_reward_zero_std_all_bad),
            _curve("all succeeded", lines, lambda line: line.frac_reward_zero_std_all_good),
            _curve("other", lines, lambda line: line.frac_reward_zero_std_other),
            is_share=True,
        ),
        _chart(
            "Share of the agent's tokens that get a gradient",
            _curve("tokens with an advantage", lines, lambda line: line.frac_tokens_nonzero_advantage),
            is_share=True,
        ),
    )


def dpo_charts(lines: Sequence[DpoLine]) -> list[Chart]:
    """Pairs have no groups, so there is no spread to show."""
    return _with_points(
        _chart("Preference loss", _curve("loss", lines, lambda line: line.loss)),
        _chart(
            "Pairs in the right order",
            _curve("pairs ordered rightly", lines, lambda line: line.pair_accuracy),
            is_share=True,
        ),
        _chart("Margin between chosen and rejected", _curve("margin", lines, lambda line: line.margin)),
    )


def calibration_chart(bins: Sequence[ReliabilityBin]) -> Chart:
    """Where the curves meet the model is as often right as it believes; below, it is too sure of
    itself."""
    sure = [one.confidence for one in bins]
    return _chart(
        "Calibration: how often it is right, by how sure it is",
        _line("as sure as right", sure, sure),
        _line("held-out pairs", sure, [one.accuracy for one in bins]),
        is_share=True,
        is_unsmoothed=True,
        x="sure",
    )


def _strict_curve(lines: Sequence[GrpoLine]) -> list[Curve]:
    """None of a training from before it was recorded."""
    curve = _curve("strict success", lines, lambda line: line.strict_success)
    return [curve] if curve["steps"] else []


def _chart(title: str, *curves: Curve, **options: Any) -> Chart:
    return {"title": title, "curves": curves, **options}


def _curve(name: str, lines: Sequence[Line], value: Callable[[Line], float | None]) -> Curve:
    points = [(line.step, number) for line in lines if (number := value(line)) is not None]
    return _line(name, [step for step, _ in points], [number for _, number in points])


def _line(name: str, steps: Sequence[float], values: Sequence[float]) -> Curve:
    return {"name": name, "steps": steps, "mean": values, "low": [], "high": []}


def _with_points(*charts: Chart) -> list[Chart]:
    """Without the charts whose numbers no line has."""
    return [chart for chart in charts if any(curve["steps"] for curve in chart["curves"])]
