"""Charts of the report and of a comparison, and the metrics that each draws.

A chart is what `posttrain/report/page_parts.js` draws: a title, how its values are read, and
curves, each with `steps` (N) and `mean` (N), without a band because there is one run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.run_reader import PolicyLine, ReliabilityBin, SftLine

Chart = dict[str, Any]
# by title the curves, each with the field of a line that it draws, and options of the chart
Charts = Mapping[str, tuple[Mapping[str, str], Mapping[str, bool]]]

_LOG, _SHARE, _NUMBER = {"is_log": True}, {"is_share": True}, dict[str, bool]()

SFT_LOSS: Charts = {  # in nats per agent token
    "Fine-tuning: loss": ({"training rows": "loss", "dev demonstrations": "eval_loss"}, _LOG),
}
SFT_CHARTS: Charts = {
    **SFT_LOSS,
    "Fine-tuning: loss by kind of token": ({"reasoning": "loss_reasoning", "calls": "loss_call"}, _LOG),
}
GRPO_CHARTS: Charts = {
    "Success of the sampled episodes": ({"strict success": "strict_success", "success": "success"}, _SHARE),
    "Reward": ({"mean reward": "reward_mean", "with the reward model's": "learnt_reward_mean"}, _NUMBER),
    "Entropy and KL, nats per token": ({"entropy": "entropy", "KL to the start": "kl"}, _NUMBER),
    "Orders and writes before consent": (
        {"share of episodes": "cost_write_before_consent", "weight of the cost": "cost_weight_write_before_consent"},
        _NUMBER,
    ),
    "Tool calls that failed": ({"tool calls": "tool_failures"}, _SHARE),
    "Turns per episode": ({"turns": "turns"}, _NUMBER),
    "Tokens per episode": ({"tokens": "length"}, _NUMBER),
}
SPREAD_CHARTS: Charts = {  # a group without spread gives no gradient
    "Standard deviation of the reward": (
        {"within groups (reward_std)": "reward_std", "whole batch (reward_std_batch)": "reward_std_batch"},
        _NUMBER,
    ),
    "Groups whose rewards are all equal": (
        {
            "all (frac_reward_zero_std)": "frac_reward_zero_std",
            "all failed": "frac_reward_zero_std_all_bad",
            "all succeeded": "frac_reward_zero_std_all_good",
            "other": "frac_reward_zero_std_other",
        },
        _SHARE,
    ),
    "Share of the agent's tokens that get a gradient": (
        {"tokens with an advantage": "frac_tokens_nonzero_advantage"},
        _SHARE,
    ),
}
OWN_CHARTS: Charts = {
    "Success of the dev tasks, played greedily": (
        {"strict success": "dev_strict_success", "success": "dev_success"},
        _SHARE,
    ),
    "Success of what was played": ({"strict success": "strict_success", "success": "success"}, _SHARE),
    "Loss on the accepted episodes": ({"loss": "loss"}, _NUMBER),
}
DPO_CHARTS: Charts = {
    "Preference loss": ({"loss": "loss"}, _NUMBER),
    "Pairs in the right order": ({"pairs ordered rightly": "pair_accuracy"}, _SHARE),
    "Margin between chosen and rejected": ({"margin": "margin"}, _NUMBER),
}


def drawn(charts: Charts, lines: Sequence[SftLine] | Sequence[PolicyLine]) -> list[Chart]:
    """The charts for which some line has a number."""
    found: list[Chart] = [
        {"title": title, "curves": [_curve(name, lines, field) for name, field in curves.items()], **options}
        for title, (curves, options) in charts.items()
    ]
    return [chart for chart in found if any(curve["steps"] for curve in chart["curves"])]


def calibration_chart(bins: Sequence[ReliabilityBin]) -> Chart:
    """Reliability diagram: below the diagonal the reward model is too sure of itself."""
    sure = [one.confidence for one in bins]
    curves = [_line("as sure as right", sure, sure), _line("held-out pairs", sure, [one.accuracy for one in bins])]
    title = "Calibration: how often it is right, by how sure it is"
    return {"title": title, "curves": curves, "is_share": True, "is_unsmoothed": True, "x": "sure"}


def _curve(name: str, lines: Sequence[SftLine | PolicyLine], field: str) -> Chart:
    points = [(line.step, number) for line in lines if (number := getattr(line, field)) is not None]
    return _line(name, [step for step, _ in points], [number for _, number in points])


def _line(name: str, steps: Sequence[float], values: Sequence[float]) -> Chart:
    return {"name": name, "steps": steps, "mean": values, "low": [], "high": []}
