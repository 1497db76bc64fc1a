"""The planner's desk whose sub-agents are a policy, too, with an expert for each of the two roles
and their flaws."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from posttrain.runtime.exits import ConfigurationError
from posttrain.types import WORKER, Delegated, JsonValue, Message, StopReason, Task, Trajectory
from posttrain.worlds.made_calls import report_of
from posttrain.worlds.protocol import Delegation, Expert
from posttrain.worlds.scripts import Script, ScriptedExpert, call, say
from posttrain.worlds.state_machine.case import COSTS, Case, Goal
from posttrain.worlds.state_machine.domain import OCCASION_FRAC, StateMachineDomain, delegation
from posttrain.worlds.state_machine.params import StateMachineParams
from posttrain.worlds.state_machine.process import Process, Situation, load_process
from posttrain.worlds.state_machine.work import NO_WORK, WORKER_COSTS, StaffedCase, event_in
from posttrain.worlds.tools import Tool, ToolError, json_object

SYSTEM = (
    "You are the planner of a process. Each line is `State@agent:Event>State`. Delegate the work of a state to its "
    "agent, and do none yourself. Update the state with each event that is reported. Where there is no work, the event "
    "before was wrong: delegate its state again, and correct the event. At the end, finish with the name of the state."
)
_PLANNER_FLAWS = ("takes_over", "skips_update", "wrong_agent")
_WORKER_FLAWS = ("reports_early", "gives_up")


class StaffedStateMachine(StateMachineDomain):
    """`expert` plays both roles: the worker's tasks are those of its delegations."""

    scores = costs = (*COSTS, *WORKER_COSTS)
    worker_failures: Sequence[str] = WORKER_COSTS
    tool_names = ("delegate", "update_state", "correct_state", "execute", "finish")
    system = SYSTEM
    has_worker = True

    def __init__(self, params: StateMachineParams) -> None:
        if params.is_solo:
            raise ConfigurationError(
                "world.is_solo is true and agent.worker set: a solo planner has nobody to delegate to"
            )
        self._worker_tools: Mapping[str, Tool] = {}
        super().__init__(params)
        [some] = self.tasks("dev", 1)
        self._worker_tools = self.case(some).worker_tools()

    def case(self, task: Task) -> StaffedCase:
        return StaffedCase(task, self._worker_tools, is_state_shown=self._params.is_state_shown)

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        is_worker = task.agent_name == WORKER
        draw = random.Random(f"state_machine {task.agent_name} {task.task_id} {seed}")
        rates, names = self._params.flaw_rates, _WORKER_FLAWS if is_worker else _PLANNER_FLAWS
        drawn = [name for name in names if draw.random() < getattr(rates, name) and not is_flawless]
        flaw, has_thought = drawn[0] if drawn else "", draw.random() < reasoning_frac
        if is_worker:
            return ScriptedExpert(_work(task.goal, flaw, f"To {task.goal}." if has_thought else None))
        return ScriptedExpert(_plan(Goal.of(task), flaw, draw, has_thought=has_thought))

    def tools_as_recorded(self, case: Case, trajectory: Trajectory) -> dict[str, Tool]:
        """What was delegated is played again as it was recorded."""
        tools = self.tools_of(case)
        again = partial(_delegate_again, tools["delegate"], iter(trajectory.delegated))
        return {**tools, "delegate": replace(tools["delegate"], function=again)}


def _delegate_again(tool: Tool, recorded: Iterator[Delegated], **arguments: Any) -> Any:
    given = tool.function(**arguments)
    if not isinstance(given, Delegation):
        return given
    record = next(recorded, None)
    for made in (made for message in (record.messages if record else ()) for made in message.tool_calls):
        with suppress(KeyError, ToolError):
            given.tools[made.name].call(made.arguments)
    # the clock may have ended the episode before there was a report
    is_over = record is not None and record.stop_reason is not StopReason.TIME_LIMIT
    return given.report(report_of(record.messages)) if record and is_over else ""


def _plan(goal: Goal, flaw: str, draw: random.Random, *, has_thought: bool) -> Script:
    """The planner: `told` are the events as they were reported, `last` is the state of the last
    one, `again` of a state that is delegated again, `late` are events not yet taken in."""
    process, told, late, last, again = load_process(goal.process), list[str](), list[str](), "", ""
    events = {event for own in process.reports.values() for event in own}
    while not (found := _at(process, goal, told)).is_end:
        thought = f"It is at {found.name}." if has_thought else None
        has_thought = False
        state = again or found.working[0]
        is_occasion = bool(flaw) and draw.random() < OCCASION_FRAC
        if flaw == "wrong_agent" and is_occasion and (others := sorted({*goal.owners.values()} - {goal.owners[state]})):
            yield replace(delegation(draw.choice(others), state), reasoning_content=thought)
            flaw, thought = "", None
        takes_over = flaw == "takes_over" and is_occasion
        asked = call("execute", {"state": state}) if takes_over else delegation(goal.owners[state], state)
        messages = yield replace(asked, reasoning_content=thought)
        flaw = "" if takes_over else flaw
        event = event_in(messages[-1].content, events)
        if not event or process.after(goal.data, [*(told[:-1] if again else told), event]) is None:
            again = last if NO_WORK in messages[-1].content else again
        elif again:
            if event != told[-1]:
                told[-1] = event
                yield call("correct_state", {"event": event})
            again = ""
        else:
            told.append(event)
            late.append(event)
            last = state
        if flaw == "skips_update" and is_occasion and late and not _at(process, goal, told).is_end:
            flaw = ""
            continue
        for event in late:
            yield call("update_state", {"event": event})
        late = []
    yield call("finish", {"report": found.name})


def _at(process: Process, goal: Goal, told: Sequence[str]) -> Situation:
    found = process.after(goal.data, told)
    assert found is not None, "what is not enabled is not told"
    return found


def _work(state: str, flaw: str, thought: str | None) -> Script:
    """The worker, who checks until a result is done and of its own job, and confirms a draft."""
    messages = yield call("begin", {"state": state}, reasoning=thought)
    job, name = _result(messages).get("job"), "check"
    while job is not None:
        result = _result((yield call(name, {"job": job})))
        is_done = result.get("job") == job and result.get("status") == "done"
        if is_done or (flaw == "reports_early" and "event" in result):
            yield say(f"now {result['event']}.")
        elif flaw == "gives_up" or "error" in result:
            yield say("nothing yet.")
        name = "confirm" if result.get("status") == "draft" else "check"
    yield say(NO_WORK)


def _result(messages: Sequence[Message]) -> dict[str, JsonValue]:
    return json_object(messages[-1].content) or {}
