"""Scripts of the expert of a lookup world, and its seven systematic flaws.

The gold expert asks back where that is due, makes the gold calls with the codes that its searches
gave, and reads the answer from their results. Worlds differ in their `Handbook`.
"""

import random
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Literal, Protocol, get_args

from posttrain.types import Message, Task
from posttrain.worlds.lookups.gold import Answer, GoldCall, format_answer, gold_of
from posttrain.worlds.lookups.sides import Sides
from posttrain.worlds.scripts import Script, call, raw_call, say
from posttrain.worlds.tools import is_error

Flaw = Literal["wrong_side", "give_up", "look_alike", "redundant_call", "malformed_json", "side_flip", "repeated_ask"]
FLAWS: tuple[Flaw, ...] = get_args(Flaw)
_NO_CALL_WORDS = {"en": "no tool needed", "zh": "不用查"}


class Handbook(Protocol):
    """An expert's knowledge of its world's tools."""

    sides: Sides

    def is_search(self, tool: str) -> bool: ...

    def look_alike(self, tool: str) -> str | None:
        """The tool that a flawed expert calls instead of this one; None where it mistakes none."""
        ...

    def is_side_said(self, task: Task) -> bool:
        """False where nobody says which side is meant, and one must look on both."""
        ...

    def code_found(self, content: str) -> str:
        """The code in a search's result."""
        ...

    def answer(self, task: Task, contents: Sequence[str]) -> Answer:
        """The answer in the results of the calls that hold it, also after calling a look-alike."""
        ...

    def evidence(self, task: Task, contents: Sequence[str]) -> str:
        """The values behind the answer, quoted from the results before it; may be empty."""
        ...


def occasions(task: Task, handbook: Handbook) -> frozenset[Flaw]:
    """The flaws that the task gives the occasion for, with tools that it offers."""
    gold, sides = gold_of(task), handbook.sides
    names = [gold_call.name for gold_call in gold.calls]
    searches = [name for name in names if handbook.is_search(name)]
    offered = set(task.tools)
    found: set[Flaw] = set()
    twins = {sides.twin(name) for name in names if sides.is_marked(name)}
    if any(sides.is_marked(name) for name in searches) and handbook.is_side_said(task) and twins <= offered:
        found.add("wrong_side")
        if task.labels[sides.label] == sides.marked:
            found.add("side_flip")
    if 2 * len(searches) > len(names):  # more searches than calls that answer: one of them finds nothing
        found.add("give_up")
    if any(handbook.look_alike(name) in offered for name in names):
        found.add("look_alike")
    if gold.asks:
        found.add("repeated_ask")
    if names:
        found |= {"redundant_call", "malformed_json"}
    return frozenset(found)


def draw_flaws(task: Task, handbook: Handbook, rates: Mapping[Flaw, float], rng: random.Random) -> frozenset[Flaw]:
    """The flaws of one episode, each with its rate; none without rates."""
    if not rates:
        return frozenset()
    drawn = occasions(task, handbook) & {flaw for flaw in FLAWS if rng.random() < rates[flaw]}
    # An expert on the wrong side mistakes no look-alike: of a task that needs both put right at
    # once, no sampled episode would succeed, and what is half right would be rewarded.
    return drawn - {"look_alike"} if drawn & {"wrong_side", "side_flip"} else drawn


def expert_script(task: Task, handbook: Handbook, flaws: Collection[Flaw], *, is_reasoning: bool) -> Script:
    """The script of one episode with the drawn `flaws`. Without any it strictly succeeds."""
    gold = gold_of(task)
    if not gold.calls:
        words = _NO_CALL_WORDS[task.labels["language"]]
        yield say(format_answer(gold.answer), reasoning=words if is_reasoning else None)
        return
    if gold.asks:
        yield say(f"ASK: {gold.asks}")
        if "repeated_ask" in flaws:
            yield say(f"ASK: {gold.asks}")
    yield from _Calls(task, handbook, flaws, is_reasoning=is_reasoning).script()


class _Calls:
    """The calls of a script, and the answer read from their results."""

    def __init__(self, task: Task, handbook: Handbook, flaws: Collection[Flaw], *, is_reasoning: bool) -> None:
        self._task, self._handbook, self._sides = task, handbook, handbook.sides
        self._flaws = set(flaws)
        is_flip = "side_flip" in flaws
        self._is_on_wrong_side = is_flip or "wrong_side" in flaws
        right = task.labels[self._sides.label]
        # an expert that flips the side names the right one and calls the other
        taken = self._sides.home if self._is_on_wrong_side and not is_flip else right
        words = self._sides.words.get((taken, task.labels["language"]))
        self._reasoning = words if is_flip or (is_reasoning and handbook.is_side_said(task)) else None

    def script(self) -> Script:
        code: str | None = None
        contents: list[str] = []
        calls = gold_of(self._task).calls
        for index, gold_call in enumerate(calls):
            has_other_name = index + 1 < len(calls) and self._is_search(gold_call) and self._is_search(calls[index + 1])
            content = yield from self._make(gold_call, code)
            if is_error(content) and "give_up" in self._flaws:
                yield say("ANSWER: none")
                return
            if is_error(content) and self._is_on_wrong_side and not has_other_name:
                self._is_on_wrong_side = False
                content = yield from self._make(gold_call, code)
            code = None
            if not self._is_search(gold_call):
                contents.append(content)
            elif not is_error(content):
                code = self._handbook.code_found(content)
        evidence = self._handbook.evidence(self._task, contents)
        answer = format_answer(self._handbook.answer(self._task, contents))
        yield say(f"{evidence}\n{answer}" if evidence else answer)

    def _make(self, gold_call: GoldCall, code: str | None) -> Generator[Message, Sequence[Message], str]:
        """One call, with the drawn flaws of form; returns the result's text."""
        name = self._name(gold_call.name)
        arguments = {key: values[0] for key, values in gold_call.arguments.items() if values[0] is not None}
        if code is not None and "code" in gold_call.arguments:  # a name that found others is searched no further
            arguments["code"] = code
        reasoning, self._reasoning = self._reasoning, None
        if "malformed_json" in self._flaws:
            self._flaws.discard("malformed_json")
            cut_off = call(name, arguments).tool_calls[0].arguments[:-2]
            yield raw_call(name, cut_off, reasoning=reasoning)
            reasoning = None
        messages = yield call(name, arguments, reasoning=reasoning)
        if "redundant_call" in self._flaws and not is_error(messages[-1].content):
            self._flaws.discard("redundant_call")
            messages = yield call(name, arguments)
        return messages[-1].content

    def _name(self, tool: str) -> str:
        if "look_alike" in self._flaws:
            tool = self._handbook.look_alike(tool) or tool
        return self._sides.twin(tool) if self._is_on_wrong_side and self._sides.is_marked(tool) else tool

    def _is_search(self, gold_call: GoldCall) -> bool:
        return self._handbook.is_search(gold_call.name)
