"""One episode: what the sub-agents have told, what the planner believes, and what it may do next.

Both are positions in the same process, compared before every act. The grade plays an episode's
calls again on a fresh case, so that nothing outside of the record counts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, TypeAlias

from posttrain.types import JsonValue, Task
from posttrain.worlds.state_machine.process import Process, Situation, load_process
from posttrain.worlds.tools import ToolError

COSTS = ("takes_over", "state_lost", "wrong_delegation", "missed_report")
NOT_MINE = "not my work now."
ReportKind = Literal["event", "vague", "late", "repeated", "wrong"]
# what the planner does, and with what: a state, an agent, an event, or nothing where it waits
Act: TypeAlias = tuple[Literal["delegate", "ask", "wait", "execute", "update_state", "correct_state", "finish"], str]


@dataclass(frozen=True, slots=True)
class Report:
    """A sub-agent's words, and the event that is named in them; empty for none."""

    kind: ReportKind
    text: str
    event: str


@dataclass(frozen=True, slots=True)
class Step:
    """The work of `state`, done once: its reports, the last of which tells the `event` to which it
    came."""

    state: str
    event: str
    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True)
class Goal:
    """`agents` has one for each owner of the process. Steps of parallel states may come in another
    order than this one."""

    process: str
    data: Mapping[str, str | int]
    agents: tuple[str, ...]
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, task: Task) -> "Goal":
        read = json.loads(task.goal)
        steps = tuple(
            Step(one["state"], one["event"], tuple(Report(**report) for report in one["reports"]))
            for one in read["steps"]
        )
        return cls(read["process"], read["data"], tuple(read["agents"]), steps)

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def owners(self) -> dict[str, str]:
        """The agent who owns each state with work."""
        return {state: self.agents[number - 1] for state, number in load_process(self.process).owners.items()}


class Given(NamedTuple):
    """The last report of a work that goes on."""

    state: str
    report: Report


class Case:
    """The state of one episode. `told` and `believed` are the events so far, `costs` the harms,
    `num_needless` counts acts that were not due."""

    def __init__(self, goal: Goal, *, is_solo: bool) -> None:
        self.told, self.believed, self.costs = list[str](), list[str](), set[str]()
        self.num_needless, self.reported = 0, ""
        self.process: Process = load_process(goal.process)
        self.owners = goal.owners()
        self._data, self.is_solo = goal.data, is_solo
        self._left = list(goal.steps)
        self._begun: dict[str, int] = {}  # the reports given so far of each state's work that goes on
        self._wrong: Step | None = None  # was told wrongly, and is corrected with the next report

    def due(self) -> list[Act]:
        """The acts that are right now; none where the planner has lost the state."""
        if (believed := tuple(self.believed)) != (told := tuple(self.told)):
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
                is_late = self._report(state).kind == "late"
                acts.append(("wait", "") if is_late else ("ask", self.owners[state]))
        return acts

    @property
    def is_done(self) -> bool:
        return self.at.is_end and self.believed == self.told and self.reported == self.at.name

    @property
    def at(self) -> Situation:
        found = self.situation(self.told)
        assert found is not None, "what is told is enabled, because it was drawn so"
        return found

    def situation(self, events: Sequence[str]) -> Situation | None:
        return self.process.after(self._data, tuple(events))

    @property
    def last(self) -> Given:
        """Raises StopIteration where nothing goes on."""
        state, number = next(iter(self._begun.items()))
        report = self._report(state)
        return Given(state, report if report.kind == "late" else self._step(state).reports[number - 1])

    def describe(self) -> str:
        """Both positions in a line each."""
        believed = self.situation(self.believed)
        return (
            f"{self.process.name} at {self.at.name}, told {', '.join(self.told) or 'nothing'}\n"
            f"planner at {believed.name if believed else 'no state'}, updated {', '.join(self.believed) or 'nothing'}"
        )

    def delegate(self, agent: str, instruction: str) -> str:
        states = [one for one in self.at.working if self.owners[one] == agent and one in instruction.split()]
        self._act(("delegate", states[0] if states else ""))
        if self._wrong:
            return self._correct(self._wrong)
        if not states:
            self.costs.add("wrong_delegation")
            return f"{agent}: {NOT_MINE}"
        self._begun.setdefault(states[0], 0)
        return self._next_report(states[0])

    def ask(self, agent: str) -> str:
        self._act(("ask", agent))
        if self._wrong:
            return self._correct(self._wrong)
        states = [state for state in self._begun if self.owners[state] == agent]
        return self._next_report(states[0]) if states else f"{agent}: nothing to report."

    def wait(self) -> str | None:
        """The report of an agent who said that it would write; None where none did."""
        self._act(("wait", ""))
        late = [state for state in self._begun if self._report(state).kind == "late"]
        if not late:
            return None
        self._begun[late[0]] += 1
        return self._next_report(late[0])

    def execute(self, state: str) -> JsonValue:
        self._act(("execute", state))
        if not self.is_solo:
            self.costs.add("takes_over")
        if self._wrong:
            return self._correct(self._wrong)
        if state not in self.at.working:
            raise ToolError(f"{state} has no work now")
        step = self._step(state)
        self._end(step, step.event)
        return {"event": step.event}

    def update_state(self, event: str) -> Situation:
        """The planner's new position. Raises ToolError where the event is not enabled there."""
        return self._believe(("update_state", event), [*self.believed, event])

    def correct_state(self, event: str) -> Situation:
        """The same with `event` in the place of the last one."""
        return self._believe(("correct_state", event), [*self.believed[:-1], event] if self.believed else [])

    def finish(self, report: str) -> None:
        self._act(("finish", report.strip()))
        self.reported = report.strip()

    def _act(self, act: Act) -> None:
        """Counts an act that is not due; compares the two positions before one that needs them."""
        self.num_needless += act not in self.due()
        if act[0] not in ("update_state", "correct_state") and self.believed != self.told:
            is_behind = self.told[: len(self.believed)] == self.believed
            self.costs.add("missed_report" if is_behind else "state_lost")

    def _believe(self, act: Act, events: list[str]) -> Situation:
        self._act(act)
        found = self.situation(events) if events else None
        if found is None:
            at = self.situation(self.believed[: -1 if act[0] == "correct_state" else None])
            raise ToolError(f"{act[1]} is no event at {at.name if at else 'the beginning'}")
        self.believed = events
        return found

    def _step(self, state: str) -> Step:
        return next(step for step in self._left if step.state == state)

    def _report(self, state: str) -> Report:
        return self._step(state).reports[self._begun[state]]

    def _next_report(self, state: str) -> str:
        step, report = self._step(state), self._report(state)
        if report.kind in ("event", "wrong"):
            self._end(step, report.event)
            self._wrong = step if report.kind == "wrong" else None
        elif report.kind != "late":
            self._begun[state] += 1
        return report.text

    def _correct(self, step: Step) -> str:
        self.told[-1], self._wrong = step.event, None
        return step.reports[-1].text

    def _end(self, step: Step, event: str) -> None:
        self.told.append(event)
        self._left.remove(step)
        self._begun.pop(step.state, None)
