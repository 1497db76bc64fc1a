"""Status of a run of the graph: how its stages ended, noted by the threads that run them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from posttrain.pipeline.executor import NodeOutcome
from posttrain.pipeline.graph import StageNode


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Status of one run of `nodes`: the outcomes of those that have ended."""

    nodes: Sequence[StageNode]
    outcomes: dict[str, NodeOutcome] = field(default_factory=dict)

    def failed(self) -> dict[str, NodeOutcome]:
        return {name: outcome for name, outcome in self.outcomes.items() if not outcome.is_good}

    def missing(self) -> list[str]:
        """Stages with no outcome: something before them failed, or the run was stopped."""
        return [node.name for node in self.nodes if node.name not in self.outcomes]

    def summary(self) -> str:
        """`2 of 14 stages ran, preempted 3 times`."""
        num_ran = sum(outcome.state == "completed" for outcome in self.outcomes.values())
        num_preempted = sum(outcome.num_preempted for outcome in self.outcomes.values())
        return f"{num_ran} of {len(self.nodes)} stages ran{preempted(num_preempted)}"


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
