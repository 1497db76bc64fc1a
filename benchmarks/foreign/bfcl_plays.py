"""Plays of BFCL's entries: the gold, and the gold with one thing changed.

A play has, for each of the user's turns, the steps that the agent takes, each a list of calls. One
that is cut off ends without a word after its last step, as at a limit of turns.
"""

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from posttrain.worlds.bfcl.domain import in_steps
from posttrain.worlds.bfcl.entries import SETS, Call, Entry, entries
from posttrain.worlds.bfcl.package import CLASSES
from posttrain.worlds.bfcl.schemas import schemas_of

LOG_OUTS = {"TradingBot": "trading_logout", "TicketAPI": "logout"}


@dataclass(frozen=True)
class Play:
    turns: list[list[list[Call]]] = field(default_factory=list)
    is_cut_off: bool = False


@dataclass(frozen=True)
class Occasion:
    """A gold play to be changed, and what the change is drawn from."""

    entry: Entry
    play: Play
    rng: random.Random


def gold_play(entry: Entry) -> Play:
    """A step for each gold call; of two where one turn may not have as many."""
    return Play([in_steps(calls) for calls in entry.gold])


def mutated_plays(entry: Entry, count: int, rng: random.Random) -> list[tuple[str, Play]]:
    """So many plays of different kinds, each with its kind, of the kinds that the entry gives the
    occasion for."""
    kinds = list(_KINDS)
    rng.shuffle(kinds)
    made = ((kind, _KINDS[kind](Occasion(entry, gold_play(entry), rng))) for kind in kinds)
    return [(kind, play) for kind, play in made if play is not None][:count]


def _drop_call(at: Occasion) -> Play:
    turn, step = _place(at.play, at.rng)
    del at.play.turns[turn][step]
    return at.play


def _alter_argument(at: Occasion) -> Play | None:
    return _with_argument(at.play, at.rng, _altered)


def _retype_argument(at: Occasion) -> Play | None:
    return _with_argument(at.play, at.rng, _retyped)


def _drop_argument(at: Occasion) -> Play | None:
    places = [place for place in _places(at.play) if _call(at.play, place).arguments]
    if not places:
        return None
    place = at.rng.choice(places)
    arguments = dict(_call(at.play, place).arguments)
    arguments.pop(at.rng.choice(sorted(arguments)))
    return _with_call(at.play, place, replace(_call(at.play, place), arguments=arguments))


def _add_argument(at: Occasion) -> Play:
    place = _place(at.play, at.rng)
    call = _call(at.play, place)
    return _with_call(at.play, place, replace(call, arguments={**call.arguments, "verbose": True}))


def _swap_calls(at: Occasion) -> Play | None:
    turns = [steps for steps in at.play.turns if len(steps) > 1]
    if not turns:
        return None
    steps = at.rng.choice(turns)
    place = at.rng.randrange(len(steps) - 1)
    steps[place], steps[place + 1] = steps[place + 1], steps[place]
    return at.play


def _swap_turns(at: Occasion) -> Play | None:
    if len(at.play.turns) < 2:
        return None
    place = at.rng.randrange(len(at.play.turns) - 1)
    at.play.turns[place], at.play.turns[place + 1] = at.play.turns[place + 1], at.play.turns[place]
    return at.play


def _repeat_call(at: Occasion) -> Play:
    turn, step = _place(at.play, at.rng)
    at.play.turns[turn].insert(step, copy.deepcopy(at.play.turns[turn][step]))
    return at.play


def _early_call(at: Occasion) -> Play | None:
    places = [(turn, step) for turn, step in _places(at.play) if turn and not step]
    if not places:
        return None
    turn, step = at.rng.choice(places)
    at.play.turns[turn - 1].append(at.play.turns[turn].pop(step))
    return at.play


def _early_turn(at: Occasion) -> Play | None:
    """The calls of a turn already in the turn before, and again."""
    turns = [turn for turn in range(1, len(at.play.turns)) if at.play.turns[turn]]
    if not turns:
        return None
    turn = at.rng.choice(turns)
    at.play.turns[turn - 1] += copy.deepcopy(at.play.turns[turn])
    return at.play


def _late_call(at: Occasion) -> Play | None:
    turns = [turn for turn in range(len(at.play.turns) - 1) if at.play.turns[turn]]
    if not turns:
        return None
    turn = at.rng.choice(turns)
    at.play.turns[turn + 1].insert(0, at.play.turns[turn].pop())
    return at.play


def _skip_turn(at: Occasion) -> Play:
    at.play.turns[_place(at.play, at.rng)[0]].clear()
    return at.play


def _log_out(at: Occasion) -> Play | None:
    names = [LOG_OUTS[name] for name in at.entry.classes if name in LOG_OUTS]
    if not names:
        return None
    at.play.turns[-1].append([Call(at.rng.choice(names))])
    return at.play


def _other_call(at: Occasion) -> Play:
    """A call of any function of the entry's classes, with arguments that some gold call gives."""
    late = sorted(name for names in at.entry.added.values() for name in names)
    return _insert(at.play, at.rng, some_call(at.rng.choice([*at.entry.offered, *late]), at.rng))


def _foreign_call(at: Occasion) -> Play:
    """A call of a function that the entry's classes have not."""
    own = {name for class_name in at.entry.classes for name in schemas_of(class_name)}
    names = sorted({name for class_name in CLASSES for name in schemas_of(class_name)} - own)
    return _insert(at.play, at.rng, some_call(at.rng.choice(names), at.rng))


def _only_foreign(at: Occasion) -> Play:
    """A turn with nothing but a call of no known function, after its calls were made before."""
    turn = _place(at.play, at.rng)[0]
    if turn:
        at.play.turns[turn - 1] += at.play.turns[turn]
    at.play.turns[turn] = [[Call("look_it_up", {"what": "all"})]]
    return at.play


def _empty_play(at: Occasion) -> Play:
    return Play([[] for _ in at.play.turns])


def _one_step(at: Occasion) -> Play:
    """All calls of a turn in one message."""
    return Play([[[call for step in steps for call in step]] if steps else [] for steps in at.play.turns])


def _cut_off(at: Occasion) -> Play:
    return Play(at.play.turns[: at.rng.randint(1, len(at.play.turns))], is_cut_off=True)


_KINDS: Mapping[str, Callable[[Occasion], Play | None]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        *(_drop_call, _alter_argument, _retype_argument, _drop_argument, _add_argument),
        *(_swap_calls, _swap_turns, _repeat_call, _early_call, _early_turn, _late_call, _skip_turn, _log_out),
        *(_other_call, _foreign_call, _only_foreign, _empty_play, _one_step, _cut_off),
    )
}


def _places(play: Play) -> list[tuple[int, int]]:
    return [(turn, step) for turn, steps in enumerate(play.turns) for step in range(len(steps))]


def _place(play: Play, rng: random.Random) -> tuple[int, int]:
    return rng.choice(_places(play))


def _call(play: Play, place: tuple[int, int]) -> Call:
    return play.turns[place[0]][place[1]][0]


def _with_call(play: Play, place: tuple[int, int], call: Call) -> Play:
    play.turns[place[0]][place[1]] = [call]
    return play


def _with_argument(play: Play, rng: random.Random, change: Callable[[Any, random.Random], Any]) -> Play | None:
    changed = [
        (place, replace(call, arguments={**call.arguments, name: new}))
        for place in _places(play)
        for call in [_call(play, place)]
        for name, value in call.arguments.items()
        if (new := change(value, rng)) is not None
    ]
    return _with_call(play, *rng.choice(changed)) if changed else None


def _altered(value: Any, rng: random.Random) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + rng.choice([1, -1, 0.5])
        case str():
            return rng.choice([f"{value} too", value.upper(), value[:-1], "", f" {value}"])
        case list():
            return rng.choice([[*value, "more"], value[:-1], value[::-1]])
        case dict():
            return dict(list(value.items())[:-1])
    return None


def _retyped(value: Any, rng: random.Random) -> Any:
    match value:
        case bool():
            return rng.choice([int(value), str(value)])
        case int():
            return rng.choice([float(value), str(value)])
        case float():
            return int(value) if value.is_integer() else str(value)
        case str():
            return rng.choice([[value], {"value": value}, int(value) if value.isdigit() else 0])
        case list():
            return rng.choice([str(value), {str(index): item for index, item in enumerate(value)}])
    return None


def _insert(play: Play, rng: random.Random, call: Call) -> Play:
    turn = rng.randrange(len(play.turns))
    play.turns[turn].insert(rng.randint(0, len(play.turns[turn])), [call])
    return play


def some_call(name: str, rng: random.Random) -> Call:
    schema = next(schemas_of(class_name)[name] for class_name in CLASSES if name in schemas_of(class_name))
    names: Sequence[str] = [
        key for key in schema["parameters"]["properties"] if key in schema["parameters"]["required"]
    ]
    given = _given_values()
    arguments = {key: rng.choice(given.get((name, key)) or given.get(("", key)) or ["1"]) for key in names}
    return Call(name, copy.deepcopy(arguments))


@cache
def _given_values() -> Mapping[tuple[str, str], list[Any]]:
    """Values that gold calls give for an argument: by function and argument, and by argument
    alone."""
    found: dict[tuple[str, str], list[Any]] = {}
    for entry in (entry for set_name in SETS for entry in entries(set_name)):
        for call in (call for calls in entry.gold for call in calls):
            for key, value in call.arguments.items():
                found.setdefault((call.name, key), []).append(value)
                found.setdefault(("", key), []).append(value)
    return found
