"""Table of the policies for a terminal and for Markdown.

Light, because flows and the command line import it too. Strict success leads. A share is always
shown with its interval: 88 % of 480 tasks is 85 … 91 %.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.evals.significance import Verdict
from posttrain.report.run_reader import Evaluation, Rate, Success, read_object
from posttrain.runtime.control_chars import escape_control_chars

INTERVAL = "95 % interval"
POLICIES = ("teacher", "base", "sft", "policy")
UNKNOWN = "–"  # a figure that was not recorded, or that no task has


def read_evaluations(reports_dir: Path) -> dict[str, Evaluation]:
    """Evaluations in the order of `POLICIES`. Raises DataError that names the missing or broken
    file."""
    return {policy: read_object(reports_dir / "evaluate" / f"{policy}.json", Evaluation) for policy in POLICIES}


def summary_table(reports_dir: Path) -> str:
    """Plain text for a terminal: a row per policy, and below it the path of the page, where there
    is one."""
    header, *rows = _rows(reports_dir)
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "   ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (header, *rows)
    ]
    page = reports_dir / "index.html"
    where = f"report: {page}" if page.exists() else f"no page yet: `dvc repro report` makes {page}"
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", where])


def summary_markdown(reports_dir: Path) -> str:
    """The same rows as a Markdown table."""
    header, *rows = _rows(reports_dir)
    return "\n".join(markdown_lines(header, rows)) + "\n"


def markdown_lines(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table whose columns but the first are numbers."""
    rules = ["---", *["---:"] * (len(titles) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows)]


def percent(share: float) -> str:
    """0.8833 → `88.3 %`."""
    return f"{100 * share:.1f} %"


def percent_or_unknown(share: float | None) -> str:
    """`–` for None."""
    return UNKNOWN if share is None else percent(share)


def interval(rate: Rate) -> str:
    """`85.2 … 91.0 %`."""
    return percent_range(rate.low, rate.high)


def strict_success(success: Success) -> str:
    """`strict success 88.1 % (85.2 … 91.0 %)`."""
    return f"strict success {percent(success.strict.share)} ({interval(success.strict)})"


def percent_range(low: float, high: float) -> str:
    """(0.852, 0.91) → `85.2 … 91.0 %`."""
    return f"{100 * low:.1f} … {100 * high:.1f} %"


def points(estimate: float, low: float, high: float) -> str:
    """A difference with its interval, (0.081, 0.023, 0.139) → `+8.1 (+2.3 … +13.9)`."""
    return f"{100 * estimate:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})"


def evaluation_text(summary: Mapping[str, Any]) -> str:
    """One evaluation: the rates with their intervals, what went wrong, and the scores."""
    num_samples, level = summary["num_samples"], summary["ci_level"]
    lines = [
        escape_control_chars(
            f"{summary['model']} on {summary['world']}: {summary['num_tasks']} tasks of {summary['split']}, each "
            f"greedily and {num_samples} times at temperature 1; {summary['rewarded_by']}"
        ),
        "",
    ]
    if changed := summary.get("endpoint_parameters"):
        lines[1:] = [f"the endpoint refused: {', '.join(f'{name} ({how})' for name, how in changed.items())}", ""]
    for name, prefix in (("strict success", "strict_"), ("success", "")):
        low, high = 100 * summary[f"{prefix}ci_low"], 100 * summary[f"{prefix}ci_high"]
        rate = 100 * summary[f"{prefix}success_rate"]
        lines.append(f"{name:<16}{rate:6.1f} %  {low:.1f} … {high:.1f} ({level:.0%}, Wilson)")
    for k in range(1, num_samples + 1):
        if (share := summary.get(f"pass_hat_{k}")) is not None:
            strict = summary[f"strict_pass_hat_{k}"]
            lines.append(f"{f'pass^{k}':<16}{100 * share:6.1f} %  strictly {100 * strict:.1f} %")
    lines.append(f"{'reward':<16}{summary['reward_mean']:8.3f}  in {summary['turns_mean']:.1f} messages")
    if picked := summary.get("best_of"):
        shares = [percent(picked[name]) for name in ("picked", "random", "oracle")]
        lines.append("{:<16}{}; at random {}, by an oracle {}".format(f"best of {num_samples}", *shares))
    failures = [f"{name} {count}" for name, count in summary["failures"].items()]
    lines += ["", f"failures: {escape_control_chars(', '.join(failures)) or 'none'}"]
    scores = [f"{name} {score['mean']:.3f}" for name, score in summary["scores"].items()]
    lines.append(f"scores: {escape_control_chars(', '.join(scores))}")
    for name, cost in summary["costs"].items():
        rate, sampled = percent(cost["rate"]), cost["sampled_rate"]
        also = f"; {percent(sampled)} of sampled plays" if sampled is not None else ""
        lines.append(escape_control_chars(f"{name}: {rate} ({percent_range(cost['ci_low'], cost['ci_high'])}){also}"))
    lost = summary["num_lost"] + summary["num_lost_samples"]
    if lost:
        lines.append(f"{lost} plays were lost and do not count; run it again to play them")
    return "\n".join(lines)


def gain_verdict(gain: Verdict) -> str:
    """Says if a policy's difference to the model that it was trained from is more than chance."""
    chance = "the choice of tasks" if gain.is_of_runs_only else "the choice of tasks and seeds"
    if gain.low > 0:
        return f"more than {chance} explains."
    return f"worse, by more than {chance} explains." if gain.high < 0 else f"{chance} may explain that."


def gain_sentence(gain: Verdict) -> str:
    """The difference in points with its interval, the verdict, and what it does not know of."""
    unknown = " How far other seeds lie from this one is not known." if gain.is_of_runs_only else ""
    return f"{points(gain.estimate, gain.low, gain.high)} points: {gain_verdict(gain)}{unknown}"


def _rows(reports_dir: Path) -> list[list[str]]:
    """The titles, and the cells of each policy; lost episodes have a column where there are
    some."""
    evaluations = read_evaluations(reports_dir)
    has_lost = any(one.num_lost for one in evaluations.values())
    titles = ["policy", "strict success", INTERVAL, "strict pass^4", "success", "pass^4", "tasks"]
    rows = [
        [
            policy,
            percent(one.strict.share),
            interval(one.strict),
            percent_or_unknown(one.strict_pass_hat_4),
            percent(one.success_rate),
            percent_or_unknown(one.pass_hat_4),
            str(one.num_tasks),
            *([str(one.num_lost)] if has_lost else []),
        ]
        for policy, one in evaluations.items()
    ]
    return [[*titles, *(["lost"] if has_lost else [])], *rows]
