"""Loads a process from SCXML and explores it with python-statemachine, so that an episode looks up
what that machine does.

SCXML passes over mistakes: a guard that cannot be evaluated is false, an unknown event is ignored,
and a state that nothing reaches is accepted. Here a process with such a mistake is refused.
python-statemachine 3.2 fills a datamodel for the first machine of a class alone, so that guards of
every further one would be false: each machine gets its data as a model.
"""

import ast
import itertools
import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from statemachine import StateChart
from statemachine.exceptions import InvalidDefinition, TransitionNotAllowed
from statemachine.io.evaluators import evaluator_for
from statemachine.io.interpreter import Interpreter
from statemachine.io.model import State, StateMachineDefinition
from statemachine.io.scxml.reader import SCXMLReader, parse_scxml

FOLDER = Path(__file__).parent / "processes"
_OURS = "{urn:posttrain:process}"  # attributes `owner` of a state with work, `options` of data
_JOINED = "done.state."  # raised by the machine itself where all regions are at their end
_WORD = "[A-Z][a-z]+"  # of a state or an event
_MAX_SITUATIONS = 200  # a counter without a guard has no end
Value = str | int
Data = Mapping[str, Value]
Machine: TypeAlias = "StateChart[_Model]"


@dataclass(frozen=True, slots=True)
class Situation:
    """A configuration of the machine. `working` are those of its `active` states whose owners have
    work; `name` joins them by `+`, or is that of the final state. `moves` leads from each enabled
    event to the key of the next situation; `guards` are (state, guard, value)."""

    name: str
    active: tuple[str, ...]
    working: tuple[str, ...]
    moves: Mapping[str, str]
    guards: frozenset[tuple[str, str, bool]]
    is_end: bool


@dataclass(frozen=True, slots=True)
class Process:
    """`owners` has the number of the sub-agent, from 1 on, of each state with work; `reports` the
    events that its owner may report; `data` what each datum may begin with. `situations` are by
    their key for each choice of data, where the process begins first. `lines` show it: one for each
    state, `State@owner:Event[guard]>State`. A compound state has braces, its own events behind
    them; `State*` is where it was before; parallel ones stand after `&`."""

    name: str
    owners: Mapping[str, int]
    reports: Mapping[str, tuple[str, ...]]
    data: Mapping[str, tuple[Value, ...]]
    situations: Mapping[tuple[Value, ...], Mapping[str, Situation]]
    lines: str

    def after(self, data: Data, events: Sequence[str]) -> Situation | None:
        """The situation after these events; None where one of them was not enabled."""
        situations = self.situations[tuple(data.values())]
        found = next(iter(situations.values()))
        for event in events:
            if event not in found.moves:
                return None
            found = situations[found.moves[event]]
        return found

    def text(self, owners: Mapping[str, str]) -> str:
        """The lines with the owners' names; without owners where there are none."""
        return re.sub(f"({_WORD})@[0-9]", lambda at: f"{at[1]}@{owners[at[1]]}" if owners else at[1], self.lines)

    def renamed(self, words: Mapping[str, str]) -> "Process":
        """The same process under other words for its states and events."""

        def new(text: str) -> str:
            return re.sub(_WORD, lambda found: words.get(found[0], found[0]), text)

        return Process(
            name=self.name,
            owners={new(state): number for state, number in self.owners.items()},
            reports={new(state): tuple(map(new, events)) for state, events in self.reports.items()},
            data=self.data,
            situations={
                values: {key: _renamed(one, new) for key, one in found.items()}
                for values, found in self.situations.items()
            },
            lines=new(self.lines),
        )


@lru_cache(maxsize=1024)
def load_process(name: str) -> Process:
    """One of the processes of this world; `order#17` is the order under words that 17 draws among
    those of all processes, so that nothing about it can be known without reading."""
    plain, _, naming = name.partition("#")
    texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.scxml"))}
    if not naming:
        return read_process(texts[name])
    own, every = _words(texts[plain]), _words("".join(texts.values()))
    return load_process(plain).renamed(dict(zip(own, random.Random(name).sample(every, len(own)), strict=True)))


def read_process(scxml: str) -> Process:
    """Raises ValueError where the machine would pass over a mistake in silence."""
    try:
        definition, elements = parse_scxml(scxml), list(ElementTree.fromstring(scxml).iter())  # noqa: S314
        states = {state.id: state for state in _every(definition.states)}
        data = {one.attrib["id"]: _values(one) for one in elements if one.tag.endswith("}data")}
        machine = _machine_class(definition)
        situations = {
            values: _explore(machine, dict(zip(data, values, strict=True)), states)
            for values in itertools.product(*data.values())
        }
    except (InvalidDefinition, TransitionNotAllowed, NameError, AttributeError, TypeError, LookupError) as error:
        raise ValueError(f"the process cannot be run as it is written: {error}") from error
    owners = {one.attrib["id"]: int(owner) for one in elements if (owner := one.get(f"{_OURS}owner"))}
    _check_words(states, owners)
    _check_use(states, [one for found in situations.values() for one in found.values()])
    for found in situations.values():
        _check_ends(found)
    parents = {child: state.id for state in states.values() for child in state.states}
    reports = {state: tuple(_events_at(state, states, parents)) for state in owners}
    former = {history: f"{state.id}*" for state in states.values() for history in state.history}
    lines = "\n".join(_line(one, owners, former) for one in definition.states.values() if not one.final)
    return Process(str(definition.name), owners, reports, data, situations, lines)


def _renamed(found: Situation, new: Callable[[str], str]) -> Situation:
    """The moves' keys stay as they are, and so does what only a check asks for."""
    working = tuple(map(new, found.working))
    moves = {new(event): key for event, key in found.moves.items()}
    return replace(found, name=new(found.name), working=working, moves=moves)


@cache
def _words(scxml: str) -> list[str]:
    """The names of states and events, in their order; those of regions' ends are never told."""
    return list(dict.fromkeys(re.findall(f'(?:id|event)="({_WORD})"', scxml)))


class _Model:
    """The data of one machine, which guards read and assignments write."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.state: Any = None  # the configuration, which the machine keeps here
        vars(self).update(data)


def _machine_class(definition: StateMachineDefinition) -> type[Machine]:
    """A class of machines that raise what SCXML would pass over."""
    definition.datamodel = None
    interpreter = Interpreter(reader=SCXMLReader(), evaluator=evaluator_for(trusted=False))
    interpreter.process_definition(definition, location=str(definition.name))
    machine = interpreter.scs[str(definition.name)]
    machine.catch_errors_as_events = machine.allow_event_without_transition = False
    return machine


def _explore(machine: type[Machine], data: Data, states: Mapping[str, State]) -> dict[str, Situation]:
    """Every situation that the machine reaches with `data`, the first one first."""
    found: dict[str, Situation] = {}
    waiting: list[Machine] = [machine(model=_Model(data))]
    while waiting:
        at = waiting.pop(0)
        if (key := _key(at)) in found:
            continue
        if len(found) == _MAX_SITUATIONS:
            raise ValueError(f"the process has over {_MAX_SITUATIONS} situations; a counter needs a guard")
        active = tuple(name for name in states if name in at.configuration_values)
        working = tuple(name for name in active if _has_work(states[name]))
        events = sorted({event.id for event in at.enabled_events() if not event.id.startswith(_JOINED)})
        after = {event: _sent(at, event) for event in events}
        found[key] = Situation(
            name="+".join(working) or active[-1],
            active=active,
            working=working,
            moves={event: _key(one) for event, one in after.items()},
            guards=frozenset((name, guard, _value(guard, at)) for name in active for guard in _guards(states[name])),
            is_end=at.is_terminated,
        )
        waiting += after.values()
    return found


def _value(guard: str, at: Machine) -> bool:
    return bool(evaluator_for(trusted=False).compile_bool(guard)(machine=at))


def _sent(found: Machine, event: str) -> Machine:
    """Another machine, where `found` would be after the event."""
    other = type(found)(model=_Model({}))
    vars(other.model).update(vars(found.model))
    other.history_values = dict(found.history_values)
    other.send(event)
    return other


def _key(found: Machine) -> str:
    """Equal where the machine will do the same from here on: the history of a compound state counts
    while that state is left."""
    active = sorted(map(str, found.configuration_values))
    former = sorted(
        (name, [state.id for state in states])
        for name, states in found.history_values.items()
        if not any(state.parent is not None and state.parent.id in active for state in states)
    )
    return repr((active, former, sorted((name, one) for name, one in vars(found.model).items() if name != "state")))


def _values(element: ElementTree.Element) -> tuple[Value, ...]:
    """The values that a datum may begin with: its options, or the one of its `expr`."""
    texts = element.get(f"{_OURS}options") or element.get("expr") or "None"
    return tuple(ast.literal_eval(text) for text in texts.split())


def _every(states: Mapping[str, State]) -> Iterator[State]:
    for state in states.values():
        yield state
        yield from _every(state.states)


def _has_work(state: State) -> bool:
    return not state.final and not state.states


def _guards(state: State) -> list[str]:
    return [str(one.cond) for one in state.transitions if one.cond]


def _events(state: State) -> list[str]:
    return [one.event for one in state.transitions if one.event and not one.event.startswith(_JOINED)]


def _events_at(name: str, states: Mapping[str, State], parents: Mapping[str, str]) -> list[str]:
    """The events of a state and of those around it."""
    around = _events_at(parents[name], states, parents) if name in parents else []
    return list(dict.fromkeys([*_events(states[name]), *around]))


def _check_words(states: Mapping[str, State], owners: Mapping[str, int]) -> None:
    """Raises ValueError. A planner reads states and events off a text, as single words."""
    if odd := {name for name, state in states.items() if _has_work(state)} ^ owners.keys():
        raise ValueError(f"{min(odd)} has an owner and no work, or work and no owner; let p:owner say whose it is")
    for word in (events := {event for state in states.values() for event in _events(state)}) | states.keys():
        if not re.fullmatch(_WORD, word) or (word in events and word in states):
            raise ValueError(f"{word!r} names a state or an event; give each a capitalised word of its own")


def _check_use(states: Mapping[str, State], situations: Sequence[Situation]) -> None:
    """Raises ValueError where a state, an event or a guard makes no difference."""
    reached = {name for one in situations for name in one.active}
    taken = {(name, event) for one in situations for name in one.active for event in one.moves}
    values = {value for one in situations for value in one.guards}
    for name, state in states.items():
        if name not in reached:
            raise ValueError(f"nothing leads to the state {name}; mend a target, or leave it out")
        if idle := [event for event in _events(state) if (name, event) not in taken]:
            raise ValueError(f"{idle[0]} is never enabled in {name}; mend its guard, or leave it out")
        if fixed := [one for one in _guards(state) if not {(name, one, True), (name, one, False)} <= values]:
            raise ValueError(f"the guard {fixed[0]!r} of {name} has one value only; give it data (p:options)")


def _check_ends(situations: Mapping[str, Situation]) -> None:
    ends = {key for key, one in situations.items() if one.is_end}
    while more := {key for key, one in situations.items() if ends & {*one.moves.values()}} - ends:
        ends |= more
    if stuck := [one.name for key, one in situations.items() if key not in ends]:
        raise ValueError(f"no end can be reached from {stuck[0]}; add a transition")


def _line(state: State, owners: Mapping[str, int], former: Mapping[str, str]) -> str:
    moves = [
        f"{'done' if one.event.startswith(_JOINED) else one.event}"
        f"{'[' + one.cond.replace(' ', '') + ']' if isinstance(one.cond, str) else ''}"
        f">{former.get(str(one.target), one.target)}"
        for one in state.transitions
        if one.event
    ]
    if not state.states:
        return f"{state.id}@{owners[state.id]}:{','.join(moves)}"
    inner = [_line(one, owners, former) for one in state.states.values() if not one.final]
    return f"{state.id}{{{('&' if state.parallel else chr(10)).join(inner)}}}{','.join(moves)}"
