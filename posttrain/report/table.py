"""The table of policies as a terminal and a Markdown page show it, and how it compares with the
figures in git.

Light, because flows and the command line read it too. A share is always shown with its interval: 88
% of 480 tasks is 85 … 91 %.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from posttrain.exits import DataError
from posttrain.report.sources import Evaluation, Success, read_object

POLICIES = ("teacher", "base", "sft", "policy")


def read_evaluations(reports_dir: Path) -> dict[str, Evaluation]:
    """By policy, in the order of `POLICIES`. Raises DataError that names the missing or broken
    file."""
    return {policy: read_object(reports_dir / "evaluate" / f"{policy}.json", Evaluation) for policy in POLICIES}


def summary_table(reports_dir: Path) -> str:
    """Plain text for a terminal: a row per policy, and below it the path of the page, where there
    is one."""
    evaluations = read_evaluations(reports_dir)
    header = f"{'policy':<10}{'success':>9}   {interval_name(evaluations):<18}{'pass^4':>8}{'tasks':>8}"
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
        f"| policy | success | {interval_name(evaluations)} | pass^4 | tasks |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for policy, one in evaluations.items():
        rows.append(
            f"| {policy} | {percent(one.success_rate)} | {interval(one)} | {percent(one.pass_hat_4)} | "
            f"{one.num_tasks} |"
        )
    return "\n".join(rows) + "\n"


def whose_figures(reports_dir: Path) -> str:
    """A sentence that names their commit where no stage has made a page of these evaluations here
    and they are those at HEAD; else how the policy compares with those, as `compare_with_committed`
    says it."""
    commit = _run_git(reports_dir, "log", "-1", "--format=%h (%cs)", "--", "evaluate")
    if (
        (reports_dir / "index.html").exists()
        or not commit
        or _run_git(reports_dir, "status", "--porcelain", "--", "evaluate")
    ):
        return compare_with_committed(reports_dir)
    return f"These are the committed figures, of {commit}: nothing has run in this tree yet."


def compare_with_committed(reports_dir: Path) -> str:
    """One sentence: does the policy's success lie within the interval that is committed at HEAD?

    Two machines of one CPU type give the same bytes; another type may differ in the last bits of a
    sum, and from there in single episodes. The committed interval says how much of a difference is
    chance. Raises DataError where the evaluation is missing or broken.
    """
    now = read_object(reports_dir / "evaluate" / "policy.json", Evaluation)
    shown = _run_git(reports_dir, "show", "HEAD:./evaluate/policy.json")
    if not shown:
        return "No evaluation of the policy is committed at HEAD to compare with."
    try:
        then = Evaluation.model_validate(json.loads(shown))
    except ValueError as error:
        raise DataError(
            f"reports/evaluate/policy.json at HEAD is not an evaluation ({error}); commit one that `dvc repro` wrote"
        ) from error
    if now == then:
        return f"policy: {percent(now.success_rate)}, as committed."
    where = "within" if then.ci_low <= now.success_rate <= then.ci_high else "OUTSIDE"
    return (
        f"policy: {percent(now.success_rate)}, {where} the committed interval {interval(then)} (committed: "
        f"{percent(then.success_rate)})."
    )


def verdict(before: Success, after: Success) -> Literal["better", "worse", "unclear"]:
    """Better or worse only where the two intervals have no point in common."""
    if after.ci_low > before.ci_high:
        return "better"
    return "worse" if after.ci_high < before.ci_low else "unclear"


def percent(share: float) -> str:
    """0.8833 → `88.3 %`."""
    return f"{100 * share:.1f} %"


def interval(success: Success) -> str:
    """`85.2 … 91.0 %`."""
    return f"{100 * success.ci_low:.1f} … {100 * success.ci_high:.1f} %"


def interval_name(evaluations: Mapping[str, Evaluation]) -> str:
    """`95 % interval`. Raises DataError where the policies were evaluated at different levels,
    because their intervals cannot be compared."""
    levels = {one.ci_level for one in evaluations.values()}
    if len(levels) > 1:
        raise DataError(
            f"the policies' intervals have levels {sorted(levels)}, so they cannot stand in one table: "
            "run `dvc repro` for all of them"
        )
    return f"{100 * levels.pop():g} % interval"


def _run_git(folder: Path, *arguments: str) -> str:
    """What it prints; nothing where it fails."""
    shown = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False
    )
    return "" if shown.returncode else shown.stdout.strip()
