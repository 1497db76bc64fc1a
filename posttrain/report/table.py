"""Table of the policies for a terminal and for Markdown.

Light, because flows and the command line import it too. Strict success leads. A share is always
shown with its interval: 88 % of 480 tasks is 85 … 91 %.
"""

from pathlib import Path

from posttrain.report.run_reader import Evaluation, Rate, Success, read_object

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
    rules = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rules, *rows)) + "\n"


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
