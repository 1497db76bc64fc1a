"""Draws what happens in a task: a way through its process, and the words in which it is told."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from string import Template

from posttrain.worlds.state_machine.case import Report, Step
from posttrain.worlds.state_machine.process import Data, Process, Situation, Value, load_process

AGENTS = ("Ada", "Bo", "Cy", "Dee", "Eve", "Flo", "Gus", "Hal")
NOISES = ("vague", "late", "repeated", "wrong")
_MORE_FRAC = 0.3  # of the further steps that give the occasion
# the last of each is of test_paraphrase alone; $e is the event, $w the one told wrongly
_TEXTS: Mapping[str, Sequence[str]] = {
    "event": ("now $e.", "it is $e.", "done: $e.", "we can call it $e as of today."),
    "vague": ("not $e yet.", "soon $e, I hope.", "maybe $e later.", "nobody could call it $e so far."),
    "late": ("I will write.", "you will hear from me.", "wait for my word.", "expect word once I know."),
    "corrected": ("sorry: $e, not $w.", "not $w, but $e.", "take $w back: $e.", "scratch $w and make that $e."),
}


def feasible_lengths(process: str, data: Data, lengths: range) -> list[int]:
    """The numbers of events after which the process may be at an end."""
    values, plain = tuple(data.values()), process.partition("#")[0]
    first = next(iter(load_process(plain).situations[values]))
    return [length for length in lengths if _can_end(plain, values, first, length)]


def draw_way(process: str, data: Data, length: int, draw: random.Random) -> list[str]:
    """Events that lead to an end, each drawn among those from which the rest can still arrive."""
    values, plain = tuple(data.values()), process.partition("#")[0]  # its ends do not depend on words
    situations = load_process(process).situations[values]
    at, way = next(iter(situations)), list[str]()
    for left in range(length - 1, -1, -1):
        moves = situations[at].moves
        way.append(draw.choice([event for event in moves if _can_end(plain, values, moves[event], left)]))
        at = moves[way[-1]]
    return way


@dataclass(frozen=True, slots=True)
class Teller:
    """Puts a way into steps and words. `owners` has the agent of each state."""

    process: Process
    data: Data
    owners: Mapping[str, str]
    draw: random.Random
    is_paraphrase: bool

    def steps(self, way: Sequence[str], noise: str) -> list[Step]:
        """The steps, some of them with `noise`: at least one where the way gives the occasion."""
        plain = [self._plain(way, place) for place in range(len(way))]
        noisy = {place: one for place in range(len(way)) if (one := self._noisy(plain, way, place, noise))}
        sure = self.draw.choice(list(noisy) or [0])
        return [
            noisy[place] if place in noisy and (place == sure or self.draw.random() < _MORE_FRAC) else step
            for place, step in enumerate(plain)
        ]

    def _plain(self, way: Sequence[str], place: int) -> Step:
        event, working = way[place], self._at(way[:place]).working
        state = next(one for one in working if event in self.process.reports[one])
        return Step(state, event, [Report("event", self._text("event", state, e=event), event)])

    def _noisy(self, plain: Sequence[Step], way: Sequence[str], place: int, noise: str) -> Step | None:
        """The step with a report more before the last; None where it gives no occasion."""
        (state, event, reports), at = plain[place], self._at(way[:place])
        possible = [one for one in self.process.reports[state] if one in at.moves]
        match noise:
            case "vague":
                named = self.draw.choice(possible)
                first = Report("vague", self._text("vague", state, e=named), named)
            case "late":
                first = Report("late", self._text("late", state), "")
            case "repeated" if place and way[place - 1] not in at.moves and self._is_single(way[: place - 1], at):
                before = plain[place - 1]
                first = Report("repeated", self._text("event", before.state, e=before.event), before.event)
            case "wrong" if self._is_single(way[:place], at):
                # after another event there must be work, so that the mistake can be put right
                others = [one for one in possible if one != event and not self._at([*way[:place], one]).is_end]
                if not others:
                    return None
                wrong = self.draw.choice(others)
                first = Report("wrong", self._text("event", state, e=wrong), wrong)
                reports = [Report("event", self._text("corrected", state, e=event, w=wrong), event)]
            case _:
                return None
        return Step(state, event, [first, *reports])

    def _is_single(self, before: Sequence[str], at: Situation) -> bool:
        """Parallel work may be done in another order than the way's, and nothing is told before."""
        return len(self._at(before).working) == len(at.working) == 1

    def _at(self, events: Sequence[str]) -> Situation:
        found = self.process.after(self.data, tuple(events))
        assert found is not None, "a way was drawn among enabled events"
        return found

    def _text(self, kind: str, state: str, **words: str) -> str:
        frames = _TEXTS[kind]
        frame = frames[-1] if self.is_paraphrase else self.draw.choice(frames[:-1])
        return f"{self.owners[state]}: {Template(frame).substitute(words)}"


@cache
def _can_end(process: str, values: tuple[Value, ...], key: str, length: int) -> bool:
    found = load_process(process).situations[values][key]
    if found.is_end or not length:
        return found.is_end and not length
    return any(_can_end(process, values, after, length - 1) for after in found.moves.values())
