"""The charts of the report: which numbers of which file stand in which."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from markupsafe import Markup

from posttrain.report.charts import Axis, Series, axis_over, interval_chart, line_chart, log_axis_over, stacked_chart
from posttrain.report.sources import DpoLine, Evaluation, GrpoLine, ReliabilityBin, SftLine

Line = TypeVar("Line", SftLine, GrpoLine, DpoLine)
SHARE = Axis("", 0, 1, percent=True)


def success_chart(evaluations: Mapping[str, Evaluation]) -> Markup:
    rows = [(name, one.success_rate, one.ci_low, one.ci_high) for name, one in evaluations.items()]
    return interval_chart("Success on held-out tasks, with its interval", rows, SHARE)


def sft_charts(lines: Sequence[SftLine]) -> list[Markup]:
    """Loss in nats per agent token, on a scale of ratios."""
    train = Series("training rows", _points(lines, lambda line: line.loss), 0)
    dev = Series("dev demonstrations", _points(lines, lambda line: line.eval_loss), 1)
    parts = [
        Series("reasoning", _points(lines, lambda line: line.loss_reasoning), 2),
        Series("calls", _points(lines, lambda line: line.loss_call), 3),
    ]
    x = _steps([line.step for line in lines])
    charts = [("Fine-tuning: loss", [train, dev])]
    if any(part.points for part in parts):
        charts.append(("Fine-tuning: loss by kind of token", parts))
    return [line_chart(title, series, x, log_axis_over("", _values(series))) for title, series in charts]


def grpo_charts(lines: Sequence[GrpoLine]) -> list[Markup]:
    """What the agent got better at, step by step."""
    x = _steps([line.step for line in lines])
    reward = [Series("mean reward", _points(lines, lambda line: line.reward_mean), 0)]
    turns = [Series("turns", _points(lines, lambda line: line.turns), 0)]
    entropy = [
        Series("entropy", _points(lines, lambda line: line.entropy), 2),
        Series("KL to the start", _points(lines, lambda line: line.kl), 3),
    ]
    return [
        line_chart(
            "Success of the sampled episodes",
            [Series("success", _points(lines, lambda line: line.success), 0)],
            x,
            SHARE,
        ),
        line_chart("Reward", reward, x, axis_over("", _values(reward))),
        line_chart("Entropy and KL, nats per token", entropy, x, axis_over("", _values(entropy), floor=0)),
        line_chart("Turns per episode", turns, x, axis_over("", _values(turns), floor=0)),
    ]


def spread_charts(lines: Sequence[GrpoLine]) -> list[Markup]:
    """How much the groups still teach: without spread inside a group there is no gradient from
    it."""
    x = _steps([line.step for line in lines])
    spread = [
        Series("within groups (reward_std)", _points(lines, lambda line: line.reward_std), 0),
        Series("whole batch (reward_std_batch)", _points(lines, lambda line: line.reward_std_batch), 1),
    ]
    layers = [
        ("all failed", [line.frac_reward_zero_std_all_bad for line in lines]),
        ("all succeeded", [line.frac_reward_zero_std_all_good for line in lines]),
        ("other", [line.frac_reward_zero_std_other for line in lines]),
    ]
    taught = Series(
        "tokens with an advantage other than 0", _points(lines, lambda line: line.frac_tokens_nonzero_advantage), 0
    )
    return [
        line_chart("Standard deviation of the reward", spread, x, axis_over("", _values(spread), floor=0)),
        stacked_chart(
            "Groups whose rewards are all equal (frac_reward_zero_std)", [line.step for line in lines], layers, x, SHARE
        ),
        line_chart("Share of the agent's tokens that get a gradient", [taught], x, SHARE),
    ]


def dpo_charts(lines: Sequence[DpoLine]) -> list[Markup]:
    """Pairs have no groups, so there is no spread to show."""
    x = _steps([line.step for line in lines])
    margin = [Series("margin", _points(lines, lambda line: line.margin), 0)]
    loss = [Series("loss", _points(lines, lambda line: line.loss), 0)]
    accuracy = Series("pairs ordered rightly", _points(lines, lambda line: line.pair_accuracy), 0)
    return [
        line_chart("Preference loss", loss, x, axis_over("", _values(loss), floor=0)),
        line_chart("Pairs whose chosen episode gained more", [accuracy], x, SHARE),
        line_chart("Margin between chosen and rejected", margin, x, axis_over("", _values(margin), floor=0)),
    ]


def calibration_chart(bins: Sequence[ReliabilityBin]) -> Markup:
    """On the dashed line the model is as often right as it believes; below it the model is too sure
    of itself."""
    observed = Series("held-out pairs", [(one.confidence, one.accuracy) for one in bins], 0)
    x = Axis("how sure the model is of the winner", 0.5, 1, percent=True)
    return line_chart("Calibration: how often it is right", [observed], x, SHARE, has_diagonal=True)


def _points(lines: Sequence[Line], value: Callable[[Line], float | None]) -> list[tuple[float, float]]:
    return [(line.step, number) for line in lines if (number := value(line)) is not None]


def _values(series: Sequence[Series]) -> list[float]:
    return [value for one in series for _, value in one.points]


def _steps(steps: Sequence[int]) -> Axis:
    first, last = min(steps), max(steps)
    return Axis("step", first - 0.5, last + 0.5, is_whole=True)
