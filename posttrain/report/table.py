"""The table of policies as a terminal and a Markdown page show it.

Light, because flows and the command line read it too. A share is always shown with its interval: 88
% of 480 tasks is 85 … 91 %.
"""

from pathlib import Path

from posttrain.report.sources import Evaluation, Success, read_object

INTERVAL = "95 % interval"
POLICIES = ("teacher", "base", "sft", "policy")


def read_evaluations(reports_dir: Path) -> dict[str, Evaluation]:
    """By policy, in the order of `POLICIES`. Raises DataError that names the missing or broken
    file."""
    return {policy: read_object(reports_dir / "evaluate" / f"{policy}.json", Evaluation) for policy in POLICIES}


def summary_table(reports_dir: Path) -> str:
    """Plain text for a terminal: a row per policy, and below it the path of the page, where there
    is one."""
    evaluations = read_evaluations(reports_dir)
    header = f"{'policy':<10}{'success':>9}   {INTERVAL:<18}{'pass^4':>8}{'tasks':>8}"
    rows = [
        f"{policy:<10}{percent(one.success_rate):>9}   "
        f"{interval(one):<18}{percent(one.pass_hat_4):>8}{one.num_tasks:>8}"
        for policy, one in evaluations.items()
    ]
    page = reports_dir / "index.html"
    where = f"report: {page}" if page.exists() else f"no page yet: `dvc repro report` makes {page}"
    return "\n".join([header, "-" * len(header), *rows, "", where])


def summary_markdown(reports_dir: Path) -> str:
    """The same rows as a Markdown table."""
    evaluations = read_evaluations(reports_dir)
    rows = [
        f"| policy | success | {INTERVAL} | pass^4 | tasks |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for policy, one in evaluations.items():
        rows.append(
            f"| {policy} | {percent(one.success_rate)} | {interval(one)} | {percent(one.pass_hat_4)} | "
            f"{one.num_tasks} |"
        )
    return "\n".join(rows) + "\n"


def percent(share: float) -> str:
    """0.8833 → `88.3 %`."""
    return f"{100 * share:.1f} %"


def interval(success: Success) -> str:
    """`85.2 … 91.0 %`."""
    return percent_range(success.ci_low, success.ci_high)


def percent_range(low: float, high: float) -> str:
    """(0.852, 0.91) → `85.2 … 91.0 %`."""
    return f"{100 * low:.1f} … {100 * high:.1f} %"


def points(estimate: float, low: float, high: float) -> str:
    """A difference with its interval, (0.081, 0.023, 0.139) → `+8.1 (+2.3 … +13.9)`."""
    return f"{100 * estimate:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})"
