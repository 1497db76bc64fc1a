"""A planner's desk: sub-agents do the work of a process, and the planner keeps its state from what
they report. Its costs are harm that success does not show: doing a sub-agent's work, believing what
did not happen, delegating to the wrong one, going on before a report is taken in."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count as numbers

from posttrain.types import JsonValue, Message, Outcome, Split, Task, Trajectory
from posttrain.worlds.grading import OUT_OF_TIME
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.protocol import Expert, World
from posttrain.worlds.scripts import Script, ScriptedExpert, call, say
from posttrain.worlds.state_machine.case import COSTS, Act, Case, Goal
from posttrain.worlds.state_machine.drawing import AGENTS, NOISES, Teller, draw_way, feasible_lengths
from posttrain.worlds.state_machine.params import MAX_AGENTS, StateMachineParams
from posttrain.worlds.state_machine.process import Situation, load_process
from posttrain.worlds.tools import Tool, ToolError, tool_from

SYSTEM = (
    "You are the planner of a process. Each line is `State@agent:Event>State`. Delegate the work of a state to its "
    "agent, and do none yourself. Update the state with each event that is reported, once. At the end, finish with "
    "the name of the state."
)
SOLO = (
    "You run a process. Each line is `State:Event>State`. Execute the work of a state, and update the state with the "
    "event to which it came. At the end, finish with the name of the state."
)
_SPLITS = ("sft", "rl", "dev", "test")  # no split knows the cases of another
_WAITING = "I wait."
_LEAST = 2  # reports of a task: with one there is no state to keep
_OCCASION_FRAC = 0.5  # of the occasions that every step gives, so that not the first step alone shows a flaw
# classes of failures, the graver before the others
_FAILURES = ("state_lost", "missed_report", "wrong_delegation", "takes_over")
_ARGUMENT = {"ask": "agent", "execute": "state", "finish": "report", "update_state": "event", "correct_state": "event"}
_TOOLS = ("delegate", "ask", "update_state", "correct_state", "execute", "finish")
_SOLO_TOOLS = ("execute", "update_state", "finish")


class StateMachineDomain:
    """Cases are split by their numbers, and processes by the knobs."""

    name = "state_machine"
    scores: Sequence[str] = COSTS
    costs: Sequence[str] = COSTS

    def __init__(self, params: StateMachineParams) -> None:
        self._params = params
        for process in (*params.processes, *params.held_out_processes):
            load_process(process)
        [some] = self.tasks("dev", 1)
        self.tools: Mapping[str, Tool] = self.tools_of(self.case(some))

    def tasks(self, split: Split, count: int) -> list[Task]:
        return [self._drawn(split, place) for place in range(count)]

    def open(self, task: Task) -> World:
        return _Desk(task, self)

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        draw, case = random.Random(f"state_machine {task.task_id} {seed}"), self.case(task)
        thought = f"It is at {case.due()[0][1]}." if draw.random() < reasoning_frac else None
        flaw = "" if is_flawless else _drawn_flaw(Goal.of(task), self._params, draw)
        return ScriptedExpert(_script(case, flaw, thought, draw))

    def regenerate(self, task: Task, *, seed: int) -> Task:
        """Draws until the labels are equal: the length, and an occasion for the noise."""
        for number in numbers():
            draw = random.Random(f"state_machine {task.task_id} {seed} {number}")
            anew = self._made(task.split, task.labels["process"], task.labels["part"], task.labels["noise"], draw)
            if anew.labels == task.labels:
                return anew
        raise AssertionError("numbers end nowhere")

    def describe_goal(self, task: Task) -> str:
        case, goal = self.case(task), Goal.of(task)
        events = [step.event for step in goal.steps]
        end = case.process.after(goal.data, tuple(events))
        return f"{', '.join(events)}; report {end.name if end else ''}"

    def case(self, task: Task) -> Case:
        """A case in which nothing was done."""
        return Case(Goal.of(task), is_solo=self._params.is_solo)

    def tools_of(self, case: Case) -> dict[str, Tool]:
        return _tools(case, is_state_shown=self._params.is_state_shown)

    def _drawn(self, split: Split, place: int) -> Task:
        params, draw = self._params, random.Random(f"state_machine {self._params.seed} {split} {place}")
        part, share = "trained", draw.random() if split.startswith("test") else 1.0
        if share < params.held_out_frac + params.longer_frac:
            part = "held_out" if share < params.held_out_frac else "longer"
        processes = params.held_out_processes if part == "held_out" else params.processes
        noise = draw.choice(NOISES) if draw.random() < params.noise_frac else "none"
        return self._made(split, processes[place % len(processes)], part, noise, draw)

    def _made(self, split: Split, name: str, part: str, noise: str, draw: random.Random) -> Task:
        process, most = load_process(name), self._params.max_reports
        lengths = range(most + 1, 2 * most + 1) if part == "longer" else range(_LEAST, most + 1)
        choices = [dict(zip(process.options, values, strict=True)) for values in process.situations]
        possible = [(data, found) for data in choices if (found := feasible_lengths(name, data, lengths))]
        data, found = draw.choice(possible)
        way = draw_way(name, data, draw.choice(found), draw)
        few = draw.sample(AGENTS, self._params.num_agents)
        agents = tuple(few[number % len(few)] for number in range(MAX_AGENTS))
        goal = Goal(name, data, agents, ())
        is_paraphrase = split == "test_paraphrase"
        steps = Teller(process, data, goal.owners(), draw, is_paraphrase).steps(way, noise)
        is_noisy = any(len(step.reports) > 1 for step in steps)
        labels = {"process": name, "part": part, "num_reports": str(len(way)), "noise": noise if is_noisy else "none"}
        number = draw.randrange(100 + _SPLITS.index(split.removesuffix("_paraphrase")), 1000, len(_SPLITS))
        return self._task(split, replace(goal, steps=steps), labels, f"{name} {number}")

    def _task(self, split: Split, goal: Goal, labels: Mapping[str, str], case: str) -> Task:
        process, is_solo = load_process(goal.process), self._params.is_solo
        shown = [f", {name} {goal.data[name]}" for name, values in process.options.items() if len(values) > 1]
        lines = process.text({} if is_solo else goal.owners())
        text = f"{case}{''.join(shown)}, at {goal.steps[0].state}\n{lines}"
        content = json.dumps([split, text, dict(labels), goal.as_json(), is_solo])
        return Task(
            task_id=hashlib.sha256(content.encode()).hexdigest()[:16],
            split=split,
            messages=(Message("system", SOLO if is_solo else SYSTEM), Message("user", text)),
            tools=_SOLO_TOOLS if is_solo else _TOOLS,
            labels=labels,
            goal=goal.as_json(),
            template=f"{goal.process}/{'paraphrase' if split == 'test_paraphrase' else 'plain'}",
            entities=(case,),
        )


class _Desk:
    """One episode. The grade plays the record again, on a case in which nothing was done."""

    def __init__(self, task: Task, domain: StateMachineDomain) -> None:
        self._offered, self._domain, self._task = task.tools, domain, task
        self._case = domain.case(task)
        self._tools = domain.tools_of(self._case)

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def user_reply(self, message: Message) -> str | None:
        del message
        return self._case.wait()

    def describe(self) -> str:
        return self._case.describe()

    def grade(self, trajectory: Trajectory) -> Outcome:
        case = self._domain.case(self._task)
        tools = self._domain.tools_of(case)
        offered = {name: tools[name] for name in self._offered}
        turn_scores = tuple(float(_is_right(message, case, offered)) for _, message in agent_messages(trajectory))
        failure = next((name for name in _FAILURES if name in case.costs), "")
        if not failure and trajectory.stop_reason not in OUT_OF_TIME:
            failure = "wrong_report" if case.reported else "no_report"
        return Outcome(
            success=case.is_done,
            strict_success=case.is_done and all(turn_scores) and not case.costs,
            scores={name: float(name in case.costs) for name in COSTS},
            turn_scores=turn_scores,
            failure="" if case.is_done else failure,
            feedback="" if case.is_done else f"Wanted: {self._domain.describe_goal(self._task)}.",
        )


def _tools(case: Case, *, is_state_shown: bool) -> dict[str, Tool]:
    def shown(event: str, found: Situation) -> JsonValue:
        return {"final" if found.is_end else "state": found.name} if is_state_shown else {"event": event}

    def delegate(agent: str, instruction: str) -> JsonValue:
        """Delegate the work of a state to its agent, and read the report.

        Args:
            agent: the agent
            instruction: the state
        """
        return case.delegate(agent, instruction)

    def ask(agent: str) -> JsonValue:
        """Ask an agent for its next report.

        Args:
            agent: the agent
        """
        return case.ask(agent)

    def update_state(event: str) -> JsonValue:
        """Move the state by an event that was reported.

        Args:
            event: the event
        """
        return shown(event, case.update_state(event))

    def correct_state(event: str) -> JsonValue:
        """Take the last update back, and move the state by this event instead.

        Args:
            event: the event
        """
        return shown(event, case.correct_state(event))

    def execute(state: str) -> JsonValue:
        """Do the work of a state yourself.

        Args:
            state: the state
        """
        return case.execute(state)

    def finish(report: str) -> JsonValue:
        """End the process.

        Args:
            report: the final state
        """
        return case.finish(report)

    made = [tool_from(one, is_instant=True) for one in (delegate, ask, update_state, correct_state, execute)]
    return {tool.name: tool for tool in (*made, tool_from(finish, is_instant=True, ends_episode=True))}


def _is_right(message: Message, case: Case, tools: Mapping[str, Tool]) -> bool:
    """Plays the message on `case`; True where each of its acts was due."""
    before, is_right = case.num_needless, True
    if not message.tool_calls:
        case.wait()
    for made in message.tool_calls:
        try:
            tools[made.name].call(made.arguments)
        except (KeyError, ToolError):
            is_right = False
    return is_right and case.num_needless == before


def _drawn_flaw(goal: Goal, params: StateMachineParams, draw: random.Random) -> str:
    """The first flaw that is drawn and for which the goal gives the occasion; empty for none."""
    kinds = {report.kind for step in goal.steps for report in step.reports}
    occasions = {
        "takes_over": not params.is_solo and bool(kinds & {"vague", "late"}),
        "believes_early": not params.is_solo and "vague" in kinds,
        "ignores_correction": not params.is_solo and "wrong" in kinds,
        "believes_twice": not params.is_solo and "repeated" in kinds,
        "skips_update": len(goal.steps) > 1,
        "wrong_agent": not params.is_solo and params.num_agents > 1,
    }
    drawn = [name for name, is_one in occasions.items() if draw.random() < getattr(params.flaw_rates, name) and is_one]
    return drawn[0] if drawn else ""


def _script(case: Case, flaw: str, thought: str | None, draw: random.Random) -> Script:
    """Acts that are due, and the flaw at an occasion for it."""
    tools = _tools(case, is_state_shown=False)
    while due := case.due():
        messages = _flawed(case, flaw, due[0], draw)
        flaw = "" if messages else flaw
        for message in messages or [_message(case, due[0])]:
            _is_right(message, case, tools)
            yield replace(message, reasoning_content=thought)
            thought = None


def _message(case: Case, act: Act) -> Message:
    match act:
        case "wait", _:
            return say(_WAITING)
        case "delegate", state:
            return _delegation(case.owners[state], state)
        case name, value:
            return call(name, {_ARGUMENT[name]: value})


def _delegation(agent: str, state: str) -> Message:
    return call("delegate", {"agent": agent, "instruction": state})


def _flawed(case: Case, flaw: str, act: Act, draw: random.Random) -> list[Message]:
    """The messages in the place of `act`; none where it is no occasion for the flaw."""
    match flaw, act[0]:
        case "takes_over", "ask" | "wait":
            return [_message(case, ("execute", case.last.state))]
        case "believes_early", "ask" if event := case.last.report.event:
            return [_message(case, ("update_state", event)), *_lost(case, [*case.believed, event])]
        case "believes_twice", "ask":
            return [_message(case, ("update_state", case.last.report.event))]
        case "ignores_correction", "correct_state":
            return _lost(case, case.believed)
        case "skips_update", "update_state" if (states := case.at.working) and draw.random() < _OCCASION_FRAC:
            return [_message(case, ("execute" if case.is_solo else "delegate", states[0]))]
        case "wrong_agent", "delegate" if draw.random() < _OCCASION_FRAC:
            others = sorted({*case.owners.values()} - {case.owners[act[1]]})
            return [_delegation(draw.choice(others), act[1])] if others else []
    return []


def _lost(case: Case, believed: Sequence[str]) -> list[Message]:
    """The way on from a state that is not the true one: its work is delegated in vain, and it is
    reported as the end."""
    found = case.situation(believed)
    assert found is not None, "what the flawed expert believes is enabled"
    return [
        *(_message(case, ("delegate", state)) for state in found.working[:1]),
        _message(case, ("finish", found.name)),
    ]
