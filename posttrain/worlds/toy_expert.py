"""How the toy's keeper works, and the seven ways in which it goes wrong; `slips` are the names of `params.FlawRates` drawn for this play."""

import json
import re
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from posttrain.types import Answer, JsonValue, Message, Task
from posttrain.worlds.answers import Ask, format_answer, format_ask
from posttrain.worlds.scripts import Script, call, last_result, raw_call, say
from posttrain.worlds.tools import is_error

_Results = Generator[Message, Sequence[Message], dict[str, Any]]
_MIXED_UP = {"sales": "returns", "returns": "sales"}


def toy_script(task: Task, slips: Collection[str], *, is_reasoning: bool) -> Script:
    """The play of a task: asks back where that is due, makes the gold calls, reads the answer from their results. Without slips it succeeds."""
    if not task.gold.calls:
        yield say(format_answer(task.gold.answer))
        return
    if task.gold.asks:
        yield say(format_ask(Ask(task.gold.asks)))
        if "repeated_ask" in slips:
            yield say(format_ask(Ask(task.gold.asks)))
    yield from _Play(task, slips, is_reasoning=is_reasoning).script()


@dataclass(slots=True)
class _Seen:
    """What a result told about one good."""

    code: str
    result: Mapping[str, Any]


class _Play:
    def __init__(self, task: Task, slips: Collection[str], *, is_reasoning: bool) -> None:
        self._task = task
        self._slips = set(slips)
        is_named = any(gold_call.name.startswith("find_") for gold_call in task.gold.calls)
        self._is_flipped = is_named and task.market == "hk" and bool(self._slips & {"wrong_market", "market_flip"})
        word = {"a": "A", "hk": "HK"}[task.market]
        is_stated = "market_flip" in self._slips if self._is_flipped else is_reasoning  # a play that takes the other shop must not state that one
        self._reasoning = (f"market: {word}" if task.language == "en" else f"市场: {word}") if is_stated else None

    def script(self) -> Script:
        code = ""
        seen: list[_Seen] = []
        for gold_call in self._task.gold.calls:
            result = yield from self._make(self._name(gold_call.name), self._arguments(gold_call.arguments, code))
            if "error" in result and self._is_flipped:
                self._is_flipped = False
                result = yield from self._make(self._name(gold_call.name), self._arguments(gold_call.arguments, code))
            if "error" in result and "give_up" in self._slips:
                yield say("ANSWER: none")
                return
            code = str(result.get("code", ""))
            if "name" not in result and "error" not in result:
                seen.append(_Seen(code, result))
                code = ""
        yield say(format_answer(self._answer(seen)))

    def _make(self, name: str, arguments: Mapping[str, JsonValue]) -> _Results:
        """One call, with the slips of form where they were drawn; gives its result, an error included."""
        reasoning, self._reasoning = self._reasoning, None
        if "malformed_json" in self._slips:
            self._slips.discard("malformed_json")
            messages = yield raw_call(name, json.dumps(arguments, ensure_ascii=False)[:-2])
        messages = yield call(name, arguments, reasoning=reasoning)
        if "redundant_call" in self._slips and not is_error(messages[-1].content):
            self._slips.discard("redundant_call")
            messages = yield call(name, arguments)
        return last_result(messages)

    def _name(self, name: str) -> str:
        _, about = name.rsplit("_", 1)
        if "indicator_mixup" in self._slips:
            name = name.removesuffix(about) + _MIXED_UP.get(about, about)
        return name.replace("_hk_", "_") if self._is_flipped else name

    def _arguments(self, accepted: Mapping[str, Sequence[JsonValue]], code: str) -> dict[str, JsonValue]:
        """The first accepted value of each; a code that a search gave goes before."""
        return {name: code if name == "code" and code else values[0] for name, values in accepted.items()}

    def _answer(self, seen: Sequence[_Seen]) -> Answer:
        asked = self._task.template.partition("/")[0]
        if asked == "dearer":
            return Answer("code", max(seen, key=lambda one: float(one.result["price"])).code)
        result = seen[-1].result
        if asked == "price":
            return Answer("number", Decimal(f"{result['price']:.2f}"), str(result["currency"]))
        told = next(value for field, value in result.items() if re.fullmatch("count|sold|returned", field) and (field == asked or field != "count"))
        return Answer("number", Decimal(told), "pcs")
