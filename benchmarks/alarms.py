"""Asks whether the health rules keep quiet about trainings that went well, with the limits of
`params.yaml`.

The trainings are all versions of `reports/train_policy/metrics.jsonl` in git's history, a content
once, and the files that are named: `python -m benchmarks.alarms [METRICS.jsonl …]`. A rule is not
asked of a training whose metrics are older than the rule.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.arms import REPOSITORY
from posttrain.config.params import load_params
from posttrain.tracking.alarms import RULES, Alarms

CURVE = "reports/train_policy/metrics.jsonl"


def main() -> None:
    knobs = load_params(REPOSITORY / "params.yaml").train_policy
    num_curves, num_asked, num_with = 0, Counter[str](), 0
    for name, text in (*_history(), *((path, Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:])):
        lines = [json.loads(line) for line in text.splitlines()]
        alarms = Alarms(knobs.alarms, on_alarm="warn")
        raised = [f"{alarm.name} at step {alarm.step}" for line in lines for alarm in alarms.observe(line)]
        print(f"{Path(name).stem:12} {len(lines):4} steps  {', '.join(raised) or 'no alarm'}")
        num_curves, num_with = num_curves + 1, num_with + bool(raised)
        num_asked.update(rule.name for rule in RULES if lines[0].keys() >= set(rule.metrics))
    print(f"{num_with} of {num_curves} trainings raise an alarm; trainings of which each rule was asked:")
    print("  ".join(f"{rule.name} {num_asked[rule.name]}" for rule in RULES))


def _history() -> Iterator[tuple[str, str]]:
    """The oldest first, named by its commit."""
    seen = set()
    for commit in _git("log", "--branches", "--reverse", "--format=%h", "--", CURVE).split():
        text = _git("show", f"{commit}:{CURVE}")
        if text not in seen:
            seen.add(text)
            yield commit, text


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
