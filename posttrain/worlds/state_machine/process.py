"""Loads a process from SCXML and explores it with python-statemachine, so that an episode looks up
what that machine does.

SCXML passes over mistakes: a guard that cannot be evaluated is false, an unknown event is ignored,
and a document with a state that nothing reaches is accepted. Here each of them is refused when the
process is loaded. python-statemachine 3.2 fills a datamodel for the first machine of a class alone;
each machine therefore gets its data as a model.
"""

import ast
import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from statemachine import StateChart
from statemachine.exceptions import InvalidDefinition, TransitionNotAllowed
from statemachine.io.evaluators import evaluator_for
from statemachine.io.interpreter import Interpreter
from statemachine.io.model import State, StateMachineDefinition
from statemachine.io.scxml.reader import SCXMLReader, parse_scxml
from statemachine.orderedset import OrderedSet

FOLDER = Path(__file__).parent / "processes"
_OURS = "{urn:posttrain:process}"  # attributes `owner` of a state with work, `options` of data
_JOINED = "done.state."  # raised by the machine itself where all regions are at their end
_MAX_SITUATIONS = 200  # a counter without a guard has no end
Data = Mapping[str, str | int]
Values = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """A configuration of the machine. `working` are its states whose owners have work; `name` joins
    them by `+`, or is that of the final state. `moves` leads from each enabled event to the key of
    the next situation."""

    working: tuple[str, ...]
    name: str
    moves: Mapping[str, str]
    is_end: bool


@dataclass(frozen=True, slots=True)
class Process:
    """`owners` has the number of the sub-agent, from 1 on, of each state with work; `reports` the
    events that its owner may report; `options` the values with which each datum may begin.
    `situations` are by their key for each choice of values, where the process begins first."""

    name: str
    owners: Mapping[str, int]
    reports: Mapping[str, tuple[str, ...]]
    options: Mapping[str, Values]
    situations: Mapping[Values, Mapping[str, Situation]]
    definition: StateMachineDefinition

    def after(self, data: Data, events: tuple[str, ...]) -> Situation | None:
        """The situation after these events; None where one of them was not enabled."""
        situations = self.situations[tuple(data.values())]
        found = next(iter(situations.values()))
        for event in events:
            if event not in found.moves:
                return None
            found = situations[found.moves[event]]
        return found

    def text(self, owners: Mapping[str, str]) -> str:
        """A line for each state: `State@owner:Event[guard]>State`. A compound state has braces, its
        own events behind them; `State*` is where it was before; parallel ones stand after `&`."""
        states = self.definition.states
        former = {history: f"{state.id}*" for state in _every(states) for history in state.history}
        return "\n".join(_line(state, owners, former) for state in states.values() if not state.final)


@cache
def load_process(name: str) -> Process:
    """One of the processes of this world."""
    return read_process((FOLDER / f"{name}.scxml").read_text(encoding="utf-8"))


def read_process(scxml: str) -> Process:
    """Raises ValueError where the machine would pass over a mistake in silence."""
    try:
        definition, elements = parse_scxml(scxml), list(ElementTree.fromstring(scxml).iter())  # noqa: S314
        states = {state.id: state for state in _every(definition.states)}
        data = {one.attrib["id"]: _values(one) for one in elements if one.tag.endswith("}data")}
        machine = _machine_class(definition)
        chosen = [dict(zip(data, values, strict=True)) for values in itertools.product(*data.values())]
        explored = [_Explored(machine, values, states) for values in chosen]
    except (InvalidDefinition, TransitionNotAllowed, NameError, TypeError, AttributeError) as error:
        raise ValueError(f"the process cannot be run as it is written: {error}") from error
    owners = {one.attrib["id"]: int(owner) for one in elements if (owner := one.get(f"{_OURS}owner"))}
    _check_states(states, owners)
    _check_explored(states, explored)
    parents = {child: state.id for state in states.values() for child in state.states}
    return Process(
        name=str(definition.name),
        owners=owners,
        reports={state: tuple(_events_at(state, states, parents)) for state in owners},
        options=data,
        situations={tuple(values.values()): one.situations for values, one in zip(chosen, explored, strict=True)},
        definition=definition,
    )


class _Model:
    """The data of one machine, which guards read and assignments write."""

    def __init__(self, data: Data) -> None:
        self.state: Any = None
        vars(self).update(data)


class _Explored:
    """Every situation that a machine reaches with `data`, and the values its guards had there."""

    def __init__(self, machine: type[StateChart], data: Data, states: Mapping[str, State]) -> None:
        self.situations: dict[str, Situation] = {}
        self.reached, self.taken = set[str](), set[tuple[str, str]]()
        self.guards: dict[tuple[str, str], set[bool]] = {}
        self._machine, self._states, self._fresh = machine, states, data
        self._explore(machine(model=_Model(data)))

    def _explore(self, first: StateChart) -> None:
        waiting = [first]
        while waiting:
            found = waiting.pop()
            if (key := self._key(found)) in self.situations:
                continue
            if len(self.situations) == _MAX_SITUATIONS:
                raise ValueError(f"the process has over {_MAX_SITUATIONS} situations; a counter needs a guard")
            active = [str(state.id) for state in found.configuration]
            self.reached.update(active)
            self._evaluate_guards(found)
            moves = {}
            for event in sorted({event.id for event in found.enabled_events()}):
                if not event.startswith(_JOINED):
                    after = self._copy(found)
                    after.send(event)
                    moves[event] = self._key(after)
                    self.taken.update((state, event) for state in active)
                    waiting.append(after)
            working = tuple(name for name, state in self._states.items() if name in active and _has_work(state))
            self.situations[key] = Situation(working, "+".join(working) or active[-1], moves, found.is_terminated)

    def _copy(self, found: StateChart) -> StateChart:
        """Another machine in the same situation."""
        copy = self._machine(model=_Model(self._fresh))
        for name, value in vars(found.model).items():
            setattr(copy.model, name, OrderedSet(value) if isinstance(value, OrderedSet) else value)
        copy.history_values = dict(found.history_values)
        return copy

    def _key(self, found: StateChart) -> str:
        """Equal where the machine will do the same from here on: the history of a compound state
        counts while that state is left."""
        active = sorted(str(state.id) for state in found.configuration)
        kept = {
            name: [state.id for state in former]
            for name, former in found.history_values.items()
            if former and former[0].parent is not None and former[0].parent.id not in active
        }
        data = {name: value for name, value in vars(found.model).items() if name != "state"}
        return repr((active, sorted(data.items()), sorted(kept.items())))

    def _evaluate_guards(self, found: StateChart) -> None:
        for state in found.configuration:
            for guard in _guards(self._states[state.id]):
                value = evaluator_for(trusted=False).compile_bool(guard)(machine=found)
                self.guards.setdefault((state.id, guard), set()).add(bool(value))


def _machine_class(definition: StateMachineDefinition) -> type[StateChart]:
    """A class of machines that raise what SCXML would pass over."""
    definition.datamodel = None
    interpreter = Interpreter(reader=SCXMLReader(), evaluator=evaluator_for(trusted=False))
    interpreter.process_definition(definition, location=str(definition.name))
    machine = interpreter.scs[str(definition.name)]
    machine.catch_errors_as_events = machine.allow_event_without_transition = False
    return machine


def _values(element: ElementTree.Element) -> Values:
    """The values that a datum may have: its options, or the one that it begins with."""
    return tuple(
        ast.literal_eval(value) for value in element.get(f"{_OURS}options", element.get("expr", "None")).split()
    )


def _every(states: Mapping[str, State]) -> Iterator[State]:
    for state in states.values():
        yield state
        yield from _every(state.states)


def _has_work(state: State) -> bool:
    return not state.final and not state.states


def _guards(state: State) -> list[str]:
    return [str(transition.cond) for transition in state.transitions if transition.cond]


def _events_at(state: str, states: Mapping[str, State], parents: Mapping[str, str]) -> Iterator[str]:
    """The events of a state and of those around it."""
    yield from dict.fromkeys(str(one.event) for one in states[state].transitions)
    if state in parents:
        around = _events_at(parents[state], states, parents)
        yield from (event for event in around if event != "None" and not event.startswith(_JOINED))


def _check_states(states: Mapping[str, State], owners: Mapping[str, int]) -> None:
    """Raises ValueError. A model reads states and events off a text, where each must be a word."""
    if odd := {state.id for state in states.values() if _has_work(state)} ^ owners.keys():
        raise ValueError(
            f"the state {min(odd)} has an owner and no work, or work and no owner; let p:owner say whose it is"
        )
    events = {str(one.event) for state in states.values() for one in state.transitions if one.event}
    words = [*states, *(event for event in events if not event.startswith(_JOINED))]
    for word in words:
        if not re.fullmatch("[A-Z][a-z]+", word) or words.count(word) > 1:
            raise ValueError(f"{word!r} names a state or an event; give each a capitalised word of its own")


def _check_explored(states: Mapping[str, State], explored: Sequence[_Explored]) -> None:
    """Raises ValueError where a part of the process is never used, or has no way to the end."""
    reached = set().union(*(one.reached for one in explored))
    if missed := sorted(states.keys() - reached):
        raise ValueError(f"nothing leads to the state {missed[0]}; mend a target, or leave the state out")
    taken = set().union(*(one.taken for one in explored))
    for state in states.values():
        for event in (str(one.event) for one in state.transitions if one.event):
            if (state.id, event) not in taken and not event.startswith(_JOINED):
                raise ValueError(f"{event} is never enabled in {state.id}; mend its guard, or leave it out")
        for guard in _guards(state):
            seen = set().union(*(one.guards.get((state.id, guard), set()) for one in explored))
            if seen != {True, False}:
                raise ValueError(
                    f"the guard {guard!r} of {state.id} is always {seen}; give data that decide it (p:options)"
                )
    for one in explored:
        ends = {key for key, found in one.situations.items() if found.is_end}
        while more := {key for key, found in one.situations.items() if ends & {*found.moves.values()}} - ends:
            ends |= more
        if stuck := sorted(one.situations.keys() - ends):
            raise ValueError(f"no end can be reached from {one.situations[stuck[0]].name}; add a transition")


def _line(state: State, owners: Mapping[str, str], former: Mapping[str, str]) -> str:
    moves = [
        f"{'done' if str(one.event).startswith(_JOINED) else one.event}"
        f"{'[' + one.cond.replace(' ', '') + ']' if isinstance(one.cond, str) else ''}"
        f">{former.get(str(one.target), one.target)}"
        for one in state.transitions
        if one.event
    ]
    own = ",".join(moves)
    if not state.states:
        return f"{state.id}@{owners[state.id]}:{own}" if state.id in owners else f"{state.id}:{own}"
    inner = [_line(one, owners, former) for one in state.states.values() if not one.final]
    return f"{state.id}{{{('&' if state.parallel else chr(10)).join(inner)}}}{own}"
