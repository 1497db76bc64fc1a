"""The table of policies, as a terminal, a Markdown page and the HTML report show it, and how it compares with the figures in git.

Standard library only, because flows and the command line read it too. A share is always shown with its interval: 88 % of 480 tasks is 85 … 91 %.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.exits import DataError

POLICIES = ("teacher", "base", "sft", "policy")


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """Success of one policy on the held-out tasks. All but `num_tasks` are shares in [0, 1]; `ci_low` and `ci_high` bound its success rate."""

    policy: str
    success_rate: float
    ci_low: float
    ci_high: float
    num_tasks: int
    pass_hat_4: float

    @classmethod
    def from_json(cls, policy: str, content: Mapping[str, Any], source: str) -> "PolicyResult":
        """Raises DataError where a field is missing or is no number; `source` names the file in the message."""
        try:
            numbers = {name: float(content[name]) for name in ("success_rate", "ci_low", "ci_high", "pass_hat_4")}
            return cls(policy=policy, num_tasks=int(content["num_tasks"]), **numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{source} has no usable {error}: it was not written by this version. Run `dvc repro evaluate@{policy}`") from error


def read_results(reports_dir: Path) -> list[PolicyResult]:
    """One per policy, in the order of `POLICIES`. Raises DataError that names the missing or broken file."""
    return [PolicyResult.from_json(policy, _read_evaluation(reports_dir, policy), str(_path(reports_dir, policy))) for policy in POLICIES]


def summary_table(reports_dir: Path) -> str:
    """Plain text for a terminal: a row per policy, and below it the path of the page."""
    results = read_results(reports_dir)
    lines = [f"{'policy':<10}{'success':>9}   {'95 % interval':<17}{'pass^4':>8}{'tasks':>8}", "-" * 55]
    lines += [
        f"{one.policy:<10}{percent(one.success_rate):>9}   {_interval(one):<17}{percent(one.pass_hat_4):>8}{one.num_tasks:>8}" for one in results
    ]
    return "\n".join([*lines, "", f"report: {reports_dir / 'index.html'}"])


def summary_markdown(reports_dir: Path) -> str:
    """The same rows as a Markdown table."""
    rows = ["| policy | success | 95 % interval | pass^4 | tasks |", "| --- | ---: | --- | ---: | ---: |"]
    for one in read_results(reports_dir):
        rows.append(f"| {one.policy} | {percent(one.success_rate)} | {_interval(one)} | {percent(one.pass_hat_4)} | {one.num_tasks} |")
    return "\n".join(rows) + "\n"


def compare_with_committed(reports_dir: Path) -> str:
    """One sentence: does the policy's success lie within the interval that is committed at HEAD?

    Two machines of one CPU type give the same bytes; another type may differ in the last bits of a sum, and from there in single episodes. The
    committed interval says how much of a difference is chance.
    """
    now = PolicyResult.from_json("policy", _read_evaluation(reports_dir, "policy"), str(_path(reports_dir, "policy")))
    command = ["git", "show", f"HEAD:./{_path(reports_dir, 'policy').name}"]
    shown = subprocess.run(command, cwd=_path(reports_dir, "policy").parent, capture_output=True, text=True, encoding="utf-8", check=False)
    if shown.returncode:
        return "No figures are committed at HEAD to compare with."
    then = PolicyResult.from_json("policy", json.loads(shown.stdout), "the committed reports/evaluate/policy.json")
    if now == then:
        return f"policy: {percent(now.success_rate)}, the same as committed."
    is_within = then.ci_low <= now.success_rate <= then.ci_high
    where = "within" if is_within else "OUTSIDE"
    return f"policy: {percent(now.success_rate)}, {where} the committed interval {_interval(then)} (committed: {percent(then.success_rate)})."


def percent(share: float) -> str:
    """0.8833 → `88.3 %`."""
    return f"{100 * share:.1f} %"


def are_apart(low: PolicyResult, high: PolicyResult) -> bool:
    """Whether `high`'s interval lies wholly above `low`'s."""
    return high.ci_low > low.ci_high


def _interval(result: PolicyResult) -> str:
    return f"{100 * result.ci_low:.1f} … {100 * result.ci_high:.1f} %"


def _read_evaluation(reports_dir: Path, policy: str) -> Mapping[str, Any]:
    path = _path(reports_dir, policy)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: {policy} has not been evaluated. Run `dvc repro evaluate@{policy}`") from error
    except ValueError as error:
        raise DataError(f"{path} is not whole JSON ({error}). Delete it and run `dvc repro evaluate@{policy}`") from error
    if not isinstance(content, Mapping):
        raise DataError(f"{path} holds a {type(content).__name__}, not an object. Run `dvc repro evaluate@{policy}`")
    return content


def _path(reports_dir: Path, policy: str) -> Path:
    return reports_dir / "evaluate" / f"{policy}.json"
