"""One episode: what the sub-agents have told, what the planner believes, and what it may do next.

Both are places in the same process, compared before every act. The public methods with a text for
arguments are the planner's tools, and their docstrings what it reads of them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, TypeAlias

from posttrain.types import JsonValue, StopReason, Task
from posttrain.worlds.grading import OUT_OF_TIME
from posttrain.worlds.state_machine.process import Situation, load_process
from posttrain.worlds.tools import ToolError

COSTS = ("takes_over", "state_lost", "wrong_delegation", "missed_report")
_FAILURES = ("state_lost", "missed_report", "wrong_delegation", "takes_over")  # the graver ones first
# an act, and with what: a state, an agent, an event, or nothing where the planner waits
Act: TypeAlias = tuple[Literal["delegate", "ask", "wait", "execute", "update_state", "correct_state", "finish"], str]


class Report(NamedTuple):
    """A sub-agent's words, and the event that is named in them; empty for none."""

    kind: Literal["event", "vague", "late", "repeated", "wrong"]
    text: str
    event: str


class Step(NamedTuple):
    """The work of a state, done once: the event to which it comes, and its reports, the last of
    which tells that event."""

    state: str
    event: str
    reports: Sequence[Report]


@dataclass(frozen=True, slots=True)
class Goal:
    """`owners` has the agent of each state with work. Steps of parallel states may come in another
    order than this one."""

    process: str
    data: Mapping[str, str | int]
    owners: Mapping[str, str]
    steps: Sequence[Step]

    @classmethod
    def of(cls, task: Task) -> "Goal":
        read = json.loads(task.goal)
        steps = [Step(state, event, [Report(*one) for one in reports]) for state, event, reports in read["steps"]]
        return cls(**{**read, "steps": steps})

    def as_json(self) -> str:
        return json.dumps(asdict(self))


class Case:
    """The state of one episode. `told` and `believed` are the events so far, `costs` the harms,
    `num_needless` counts acts that were not due."""

    def __init__(self, goal: Goal, *, is_solo: bool, is_state_shown: bool) -> None:
        self.told, self.believed, self.costs = list[str](), list[str](), set[str]()
        self.num_needless, self.reported = 0, ""
        self.owners, self.is_solo, self._is_state_shown = goal.owners, is_solo, is_state_shown
        self._process, self._data = load_process(goal.process), goal.data
        self._left = list(goal.steps)
        self._begun: dict[str, int] = {}  # states whose work goes on, with the number of reports given
        self._wrong: Step | None = None  # was told wrongly, and is corrected with the next report

    @property
    def at(self) -> Situation:
        """The place that the reports tell."""
        found = self.situation(self.told)
        assert found is not None, "what is told is enabled, because it was drawn so"
        return found

    @property
    def last(self) -> tuple[str, Report]:
        """A state whose work goes on, and the last report of it. Raises StopIteration for none."""
        state, number = next(iter(self._begun.items()))
        return state, self._step(state).reports[number - 1]

    @property
    def is_done(self) -> bool:
        return self.at.is_end and self.believed == self.told and self.reported == self.at.name

    def failure(self, stop: StopReason) -> str:
        """The class of a failure; empty where it only ran out of time."""
        found = next((name for name in _FAILURES if name in self.costs), "")
        return found or ("" if stop in OUT_OF_TIME else "wrong_report" if self.reported else "no_report")

    def situation(self, events: Sequence[str]) -> Situation | None:
        return self._process.after(self._data, events)

    def due(self) -> list[Act]:
        """The acts that are right now; none where the planner has lost the state."""
        told, believed = self.told, self.believed
        if told != believed:
            if len(believed) == len(told) and believed[:-1] == told[:-1]:
                return [("correct_state", told[-1])]
            return [("update_state", told[len(believed)])] if told[: len(believed)] == believed else []
        if self.at.is_end:
            return [("finish", self.at.name)]
        if self.is_solo:
            return [("execute", state) for state in self.at.working]
        acts: list[Act] = []
        for state in self.at.working:
            if state not in self._begun or self._wrong:
                acts.append(("delegate", state))
            else:
                acts.append(("wait", "") if self._is_late(state) else ("ask", self.owners[state]))
        return acts

    def describe(self) -> str:
        """What was told and what was updated, in a line each."""
        believed = self.situation(self.believed)
        return (
            f"told: {' '.join(self.told) or 'nothing'}, which leads to {self.at.name}\n"
            f"updated: {' '.join(self.believed) or 'nothing'}, which leads to {believed.name if believed else '?'}"
        )

    def delegate(self, agent: str, instruction: str) -> JsonValue:
        """Delegate the work of a state to its agent, and read the report.

        Args:
            agent: the agent
            instruction: the state
        """
        states = [one for one in self.at.working if self.owners[one] == agent and one in instruction.split()]
        self._act(("delegate", states[0] if states else ""))
        if self._wrong or states:
            return self._next_report(*states[:1])
        self.costs.add("wrong_delegation")
        return f"{agent}: not my work now."

    def ask(self, agent: str) -> JsonValue:
        """Ask an agent for its next report.

        Args:
            agent: the agent
        """
        self._act(("ask", agent))
        states = [state for state in self._begun if self.owners[state] == agent]
        return self._next_report(*states[:1]) if self._wrong or states else f"{agent}: nothing to report."

    def wait(self) -> str | None:
        """The report of an agent who said that it would write; None where none did."""
        self._act(("wait", ""))
        late = [state for state in self._begun if self._is_late(state)]
        return self._next_report(late[0], is_awaited=True) if late else None

    def execute(self, state: str) -> JsonValue:
        """Do the work of a state yourself.

        Args:
            state: the state
        """
        self._act(("execute", state))
        if not self.is_solo:
            self.costs.add("takes_over")
        if self._wrong:
            return self._next_report()
        if state not in self.at.working:
            raise ToolError(f"{state} has no work now")
        step = self._step(state)
        self._end(step, step.event)
        return {"event": step.event}

    def update_state(self, event: str) -> JsonValue:
        """Move the state by an event that was reported.

        Args:
            event: the event
        """
        return self._believe(("update_state", event), [*self.believed, event])

    def correct_state(self, event: str) -> JsonValue:
        """Take the last update back, and move the state by this event instead.

        Args:
            event: the event
        """
        return self._believe(("correct_state", event), [*self.believed[:-1], event])

    def finish(self, report: str) -> JsonValue:
        """End the process.

        Args:
            report: the final state
        """
        self._act(("finish", report))
        self.reported = report
        return None

    def _act(self, act: Act) -> None:
        """Counts an act that is not due; compares the two places before one that needs them."""
        self.num_needless += act not in self.due()
        if act[0] not in ("update_state", "correct_state") and self.believed != self.told:
            is_behind = self.told[: len(self.believed)] == self.believed
            self.costs.add("missed_report" if is_behind else "state_lost")

    def _believe(self, act: Act, events: list[str]) -> JsonValue:
        """Raises ToolError where the event is not enabled."""
        self._act(act)
        found = self.situation(events)
        if found is None or (act[0] == "correct_state" and not self.believed):
            raise ToolError(f"{act[1]} is no event there")
        self.believed = events
        return {"final" if found.is_end else "state": found.name} if self._is_state_shown else {"event": act[1]}

    def _step(self, state: str) -> Step:
        return next(step for step in self._left if step.state == state)

    def _is_late(self, state: str) -> bool:
        number = self._begun[state]
        return number > 0 and self._step(state).reports[number - 1].kind == "late"

    def _next_report(self, state: str = "", *, is_awaited: bool = False) -> str:
        """The correction of what was told wrongly, else the report of a state's work: again the
        last one where the agent said that it would write, and is not awaited."""
        if self._wrong:
            step, self._wrong = self._wrong, None
            self.told[-1] = step.event
            return step.reports[-1].text
        step, number = self._step(state), self._begun.setdefault(state, 0)
        number -= self._is_late(state) and not is_awaited
        report, self._begun[state] = step.reports[number], number + 1
        if report.kind in ("event", "wrong"):
            self._end(step, report.event)
            self._wrong = step if report.kind == "wrong" else None
        return report.text

    def _end(self, step: Step, event: str) -> None:
        self.told.append(event)
        self._left.remove(step)
        self._begun.pop(step.state, None)
