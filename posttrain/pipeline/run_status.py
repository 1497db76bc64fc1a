"""Status of a run of the graph: how far it is and how its stages ended, updated by the threads that
run them, printed by another."""

import re
import threading
from collections.abc import Mapping, Sequence

from posttrain.pipeline.executor import NodeOutcome
from posttrain.pipeline.graph import StageNode


class RunStatus:
    """Status of one run of `nodes`."""

    def __init__(self, nodes: Sequence[StageNode]) -> None:
        self._nodes = nodes
        self._outcomes: dict[str, NodeOutcome] = {}
        self._shares: dict[str, float] = {}  # of what runs
        self._lock = threading.Lock()

    def update(self, name: str, line: str) -> None:
        """Take a line that a stage printed; `[train_sft] 120/800  3.1/s  …` is its progress. Of
        several loops the furthest counts."""
        if found := re.match(rf"\[{re.escape(name)}\] (\d+)/(\d+)  ", line):
            done, total = int(found[1]), int(found[2])
            with self._lock:
                self._shares[name] = max(self._shares.get(name, 0.0), min(done / total, 1.0) if total else 0.0)

    def finish(self, name: str, outcome: NodeOutcome) -> None:
        """Set the outcome of a stage, in place of an earlier one."""
        with self._lock:
            self._outcomes[name] = outcome

    def percent(self) -> float:
        """Percent of all stages, each counted alike: 2 of 4 done and a third at half is 62.5."""
        with self._lock:
            running = sum(share for name, share in self._shares.items() if name not in self._outcomes)
            return round(100 * (len(self._outcomes) + running) / max(len(self._nodes), 1), 1)

    def failed(self) -> dict[str, NodeOutcome]:
        return {name: outcome for name, outcome in self._outcomes.items() if not outcome.is_good}

    def missing(self) -> list[str]:
        """Stages with no outcome: something before them failed, or the run was stopped."""
        return [node.name for node in self._nodes if node.name not in self._outcomes]

    def summary(self) -> str:
        """`2 of 14 stages ran, preempted 3 times`."""
        outcomes = self._outcomes.values()
        num_ran = sum(outcome.state == "completed" for outcome in outcomes)
        num_preempted = sum(outcome.num_preempted for outcome in outcomes)
        return f"{num_ran} of {len(self._nodes)} stages ran{preempted(num_preempted)}"

    def table(self) -> str:
        return stages_markdown(self._nodes, self._outcomes)


def stages_markdown(nodes: Sequence[StageNode], outcomes: Mapping[str, NodeOutcome]) -> str:
    """Table of the stages, its widest column last, because a page shows the first ones. Inputs are
    those that other stages made: code is the same for all. A stage that never started reads `not
    run`."""
    made = [out for node in nodes for out in node.outs]
    rows = ["| stage | state | seconds | target | job | inputs → outputs |", "| --- | --- | ---: | --- | --- | --- |"]
    for node in nodes:
        files = f"{_listed([dep for dep in node.deps if dep in made])} → {_listed(node.outs)}"
        outcome = outcomes.get(node.name)
        if outcome is None:
            rows.append(f"| {node.name} | not run | | | | {files} |")
            continue
        cause = f": {_in_cell(outcome.reason)}" if outcome.reason else ""
        state = f"{outcome.state}{preempted(outcome.num_preempted)}{cause}"
        rows.append(f"| {node.name} | {state} | {outcome.seconds:.1f} | {outcome.target} | {outcome.job} | {files} |")
    return "\n".join(rows) + "\n"


def preempted(num_times: int) -> str:
    """`, preempted 2 times`, for the end of a sentence; empty for none."""
    return f", preempted {num_times} time{'s' if num_times > 1 else ''}" if num_times else ""


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(f"`{_in_cell(path)}`" for path in paths) or "–"


def _in_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
