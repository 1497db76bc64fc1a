"""A planner's desk: sub-agents do the work of a process, and the planner keeps its state from what
they report. Its costs are harm that success does not show: doing a sub-agent's work, believing what
did not happen, delegating to the wrong one, going on before a report is taken in."""

import hashlib
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from posttrain.types import Message, Outcome, Split, Task, Trajectory
from posttrain.worlds.made_calls import agent_messages
from posttrain.worlds.protocol import Expert, World
from posttrain.worlds.scripts import Script, ScriptedExpert, call, say
from posttrain.worlds.shares import share_of
from posttrain.worlds.state_machine.case import COSTS, Act, Case, Goal
from posttrain.worlds.state_machine.drawing import AGENTS, NOISES, Teller, draw_way, feasible_lengths
from posttrain.worlds.state_machine.params import StateMachineParams
from posttrain.worlds.state_machine.process import load_process
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
TOOLS = ("delegate", "ask", "update_state", "correct_state", "execute", "finish")
_SOLO_TOOLS = ("update_state", "execute", "finish")
_FIRST_ARGUMENT = {"ask": "agent", "execute": "state", "finish": "report"}  # of the others it is the event
_LEAST = 2  # reports of a task: with one there is no state to keep
OCCASION_FRAC = 0.5  # of the occasions that every step gives, so that not the first step alone shows a flaw


class StateMachineDomain:
    """Cases are split by their numbers, and processes by the knobs."""

    name = "state_machine"
    scores: Sequence[str] = COSTS
    costs: Sequence[str] = COSTS
    tool_names: Sequence[str] = TOOLS
    system = SYSTEM
    has_worker = False

    def __init__(self, params: StateMachineParams) -> None:
        self._params = params
        for name in (*params.processes, *params.held_out_processes):
            load_process(name)
        [some] = self.tasks("dev", 1)
        methods = [getattr(self.case(some), name) for name in self.tool_names]
        made = [tool_from(one, is_instant=True, ends_episode=one.__name__ == "finish") for one in methods]
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in made}

    def tasks(self, split: Split, count: int) -> list[Task]:
        return [self._drawn(split, place) for place in range(count)]

    def open(self, task: Task) -> World:
        return _Desk(task, self)

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        draw, case = random.Random(f"state_machine {task.task_id} {seed}"), self.case(task)
        thought = f"It is at {case.at.name}." if draw.random() < reasoning_frac else None
        flaw = "" if is_flawless else _drawn_flaw(Goal.of(task), self._params, draw)
        return ScriptedExpert(_script(case, self.tools_of(case), flaw, thought, draw))

    def regenerate(self, task: Task, *, seed: int) -> Task:
        name, labels = Goal.of(task).process, task.labels
        draws = (random.Random(f"state_machine {task.task_id} {seed} {number}") for number in itertools.count())
        made = (self._made(task.split, name, labels["part"], labels["noise"], draw) for draw in draws)
        return next(anew for anew in made if anew.labels == labels)  # of equal length, and with an occasion for noise

    def describe_goal(self, task: Task) -> str:
        case, events = self.case(task), [step.event for step in Goal.of(task).steps]
        end = case.situation(events)
        return f"{', '.join(events)}; report {end.name if end else ''}"

    def case(self, task: Task) -> Case:
        """A case in which nothing was done."""
        return Case(Goal.of(task), is_solo=self._params.is_solo, is_state_shown=self._params.is_state_shown)

    def tools_of(self, case: Case) -> dict[str, Tool]:
        return {name: replace(tool, function=getattr(case, name)) for name, tool in self.tools.items()}

    def tools_as_recorded(self, case: Case, trajectory: Trajectory) -> dict[str, Tool]:
        """The tools by which the grade plays a record again."""
        del trajectory
        return self.tools_of(case)

    def with_worker(self) -> "StateMachineDomain":
        """Raises ConfigurationError where the planner has no sub-agents."""
        from posttrain.worlds.state_machine.staffed import StaffedStateMachine

        return StaffedStateMachine(self._params)

    def _drawn(self, split: Split, place: int) -> Task:
        params, draw = self._params, random.Random(f"state_machine {self._params.seed} {split} {place}")
        part, share = "trained", draw.random() if split.startswith("test") else 1.0
        if share < params.held_out_frac + params.longer_frac:
            part = "held_out" if share < params.held_out_frac else "longer"
        names: Sequence[str] = params.held_out_processes if part == "held_out" else params.processes
        name = names[place % len(names)]
        naming = random.Random(f"state_machine naming {params.seed} {split} {place}")
        if split in ("sft", "rl") and naming.random() < params.renamed_frac:
            name = f"{name}#{naming.randrange(10**6)}"
        noise = draw.choice(NOISES) if draw.random() < params.noise_frac else "none"
        return self._made(split, name, part, noise, draw)

    def _made(self, split: Split, name: str, part: str, noise: str, draw: random.Random) -> Task:
        process, most = load_process(name), self._params.max_reports
        lengths = range(most + 1, 2 * most + 1) if part == "longer" else range(_LEAST, most + 1)
        choices = [dict(zip(process.data, values, strict=True)) for values in process.situations]
        possible = [(data, found) for data in choices if (found := feasible_lengths(name, data, lengths))]
        data, feasible = draw.choice(possible)
        way = draw_way(name, data, draw.choice(feasible), draw)
        agents = draw.sample(AGENTS, self._params.num_agents)
        owners = {state: agents[number % len(agents)] for state, number in process.owners.items()}
        steps = Teller(process, data, owners, draw, split == "test_paraphrase").steps(way, noise)
        is_noisy = any(len(step.reports) > 1 for step in steps)
        labels = {"process": process.name, "part": part, "num_reports": str(len(way))}
        labels["noise"] = noise if is_noisy else "none"
        number = draw.choice(share_of(split, range(100, 1000)))
        return self._task(split, Goal(name, data, owners, steps), labels, f"{process.name} {number}")

    def _task(self, split: Split, goal: Goal, labels: Mapping[str, str], case: str) -> Task:
        process, is_solo = load_process(goal.process), self._params.is_solo
        shown = [f", {name} {goal.data[name]}" for name, values in process.data.items() if len(values) > 1]
        lines = process.text({} if is_solo else goal.owners)
        text = f"{case}{''.join(shown)}, at {goal.steps[0].state}\n{lines}"
        content = json.dumps([split, text, labels, goal.as_json(), "worker" if self.has_worker else is_solo])
        return Task(
            task_id=hashlib.sha256(content.encode()).hexdigest()[:16],
            split=split,
            messages=(Message("system", SOLO if is_solo else self.system), Message("user", text)),
            tools=_SOLO_TOOLS if is_solo else tuple(self.tool_names),
            labels=labels,
            goal=goal.as_json(),
            template=f"{process.name}/{'paraphrase' if split == 'test_paraphrase' else 'plain'}",
            entities=(case,),
        )


class _Desk:
    """One episode. The grade plays the record again, on a case in which nothing was done."""

    def __init__(self, task: Task, domain: StateMachineDomain) -> None:
        self._task, self._domain, self._case = task, domain, domain.case(task)
        self._tools = domain.tools_of(self._case)

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    def user_reply(self, message: Message) -> str | None:
        """The report of a sub-agent who said that it would write."""
        del message
        return self._case.wait()

    def describe(self) -> str:
        return self._case.describe()

    def grade(self, trajectory: Trajectory) -> Outcome:
        """`turn_scores` are 1 for a message whose acts were due."""
        case = self._domain.case(self._task)
        found = self._domain.tools_as_recorded(case, trajectory)
        tools = {name: tool for name, tool in found.items() if name in self._task.tools}
        turn_scores = tuple(float(_is_due(message, case, tools)) for _, message in agent_messages(trajectory))
        return Outcome(
            success=case.is_done,
            strict_success=case.is_done and all(turn_scores) and not case.costs,
            scores={name: float(name in case.costs) for name in self._domain.costs},
            turn_scores=turn_scores,
            failure="" if case.is_done else case.failure(trajectory.stop_reason),
            feedback="" if case.is_done else f"Wanted: {self._domain.describe_goal(self._task)}.",
        )


def _is_due(message: Message, case: Case, tools: Mapping[str, Tool]) -> bool:
    """Plays the message on `case`; True where each of its acts was due."""
    before, is_executed = case.num_needless, True
    if not message.tool_calls:
        case.wait()
    for made in message.tool_calls:
        try:
            tools[made.name].call(made.arguments)
        except (KeyError, ToolError):
            is_executed = False
    return is_executed and case.num_needless == before


def _drawn_flaw(goal: Goal, params: StateMachineParams, draw: random.Random) -> str:
    """The first flaw that is drawn and for which the goal gives the occasion; empty for none."""
    kinds = {report.kind for step in goal.steps for report in step.reports if not params.is_solo}
    occasions = {
        "takes_over": "vague" in kinds or "late" in kinds,
        "believes_early": "vague" in kinds,
        "ignores_correction": "wrong" in kinds,
        "believes_twice": "repeated" in kinds,
        "skips_update": True,
        "wrong_agent": not params.is_solo and params.num_agents > 1,
    }
    drawn = [name for name, is_one in occasions.items() if draw.random() < getattr(params.flaw_rates, name) and is_one]
    return drawn[0] if drawn else ""


def _script(case: Case, tools: Mapping[str, Tool], flaw: str, thought: str | None, draw: random.Random) -> Script:
    """Acts that are due, with the flaw at an occasion for it; `case` goes along."""
    while due := case.due():
        messages = _flawed(case, flaw, due[0], draw)
        flaw = "" if messages else flaw
        for message in messages or [_message(case, due[0])]:
            _is_due(message, case, tools)
            yield replace(message, reasoning_content=thought)
            thought = None


def _message(case: Case, act: Act) -> Message:
    match act:
        case "wait", _:
            return say("I wait.")
        case "delegate", state:
            return delegation(case.owners[state], state)
        case name, value:
            return call(name, {_FIRST_ARGUMENT.get(name, "event"): value})


def delegation(agent: str, state: str) -> Message:
    return call("delegate", {"agent": agent, "instruction": state})


def _flawed(case: Case, flaw: str, act: Act, draw: random.Random) -> list[Message]:
    """The messages in the place of `act`; none where it is no occasion for the flaw."""
    match flaw, act[0]:
        case "takes_over", "ask" | "wait":
            return [_message(case, ("execute", case.last[0]))]
        case "believes_early" | "believes_twice", "ask":
            event = case.last[1].event
            lost = _lost(case, [*case.believed, event]) if flaw == "believes_early" else []
            return [_message(case, ("update_state", event)), *lost]
        case "ignores_correction", "correct_state":
            return _lost(case, case.believed)
        case "skips_update", "update_state" if (states := case.at.working) and draw.random() < OCCASION_FRAC:
            return [_message(case, ("execute" if case.is_solo else "delegate", states[0]))]
        case "wrong_agent", "delegate" if draw.random() < OCCASION_FRAC:
            others = sorted({*case.owners.values()} - {case.owners[act[1]]})
            return [delegation(draw.choice(others), act[1])]
    return []


def _lost(case: Case, believed: Sequence[str]) -> list[Message]:
    """The way on from a place that is not the true one: its work is delegated in vain, and it is
    reported as the end."""
    found = case.situation(believed)
    assert found is not None, "what the flawed expert believes was possible"
    vain = [_message(case, ("delegate", state)) for state in found.working[:1]]
    return [*vain, _message(case, ("finish", found.name))]
