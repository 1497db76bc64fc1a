"""The goal of a lookup task, an answer and the calls that find it, and the last line of a message
that states one.

`ANSWER: 380.20 EUR` (number and unit), `ANSWER: 700.N` (code), `ANSWER: done` (one word), or `ASK:
shop`. Only the last line counts, so that an agent cannot list candidates.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from posttrain.types import JsonValue, Task


@dataclass(frozen=True, slots=True)
class Answer:
    """One typed value, as a task wants it or as an agent's last line states it: a `number` with its
    unit (a currency, `%`, `pcs`), an entity's canonical `code` (`4711.B`), or a `choice`, one word
    of a closed set (`up`, `done`). `unit` is empty for these two."""

    type: Literal["number", "code", "choice"]
    value: Decimal | str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class GoldCall:
    """A call of the shortest plan. For each argument the accepted values, in the manner of BFCL; a
    None among them means "may be left out". `holds_answer`: the answer is in its result."""

    name: str
    arguments: Mapping[str, tuple[JsonValue, ...]]
    holds_answer: bool = True


@dataclass(frozen=True, slots=True)
class Gold:
    """No `calls`: calling any tool is wrong. `asks` must be asked back before the first call."""

    answer: Answer
    calls: tuple[GoldCall, ...] = ()
    asks: str | None = None

    def to_json(self) -> str:
        """One line, keys sorted; a number's value as text, so that 12.30 keeps its precision."""
        answer = {"type": self.answer.type, "value": str(self.answer.value), "unit": self.answer.unit}
        calls = [
            {"name": call.name, "arguments": dict(call.arguments), "holds_answer": call.holds_answer}
            for call in self.calls
        ]
        content = {"answer": answer, "calls": calls, "asks": self.asks}
        return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    def __str__(self) -> str:
        """Text for a reader: `12.50 EUR, by get_price(code=4711.B)`."""
        calls = [
            f"{call.name}({', '.join(f'{name}={values[0]}' for name, values in call.arguments.items())})"
            for call in self.calls
        ]
        asked = [f"after asking for the {self.asks}"] if self.asks else []
        by = [f"by {' and '.join(calls)}"] if calls else []
        return ", ".join([f"{self.answer.value} {self.answer.unit}".strip(), *asked, *by])


@functools.lru_cache(maxsize=65536)
def gold_from_json(text: str) -> Gold:
    """Reads `Gold.to_json`."""
    content = json.loads(text)
    answer = content["answer"]
    value = Decimal(answer["value"]) if answer["type"] == "number" else answer["value"]
    calls = tuple(
        GoldCall(
            call["name"], {name: tuple(accepted) for name, accepted in call["arguments"].items()}, call["holds_answer"]
        )
        for call in content["calls"]
    )
    return Gold(Answer(answer["type"], value, answer["unit"]), calls, content["asks"])


def gold_of(task: Task) -> Gold:
    return gold_from_json(task.goal)


_FINAL = re.compile(r"(ANSWER|ASK)\s*[:：]\s*(\S.*)", re.IGNORECASE)
_NUMBER = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3}){1,5}|\d{1,18})(?:\.\d{1,9})?)(?:\s*(%|[A-Za-z]+))?")
_CODE = re.compile(r"[0-9A-Z]{2,8}\.[A-Z]{1,3}", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z_]+")


@dataclass(frozen=True, slots=True)
class Ask:
    """A question back to the user; `what` is the missing thing, in lower case (`shop`)."""

    what: str


def parse_final(text: str) -> Answer | Ask | None:
    """The answer or question in the last line of an agent's message; None where it is not readable.

    `ANSWER: 1,234.50 EUR` is the number 1234.50 in EUR, `**ANSWER: 700.n**.` the code 700.N. A
    number of more than 18 digits is not readable: a model that repeats a digit writes thousands.
    """
    lines = text.strip().splitlines()
    found = _FINAL.fullmatch(lines[-1].strip(" \t*`.。")) if lines else None
    if found is None:
        return None
    value = found[2].strip(" *`")
    if found[1].upper() == "ASK":
        return Ask(value.lower()) if _WORD.fullmatch(value) else None
    if number := _NUMBER.fullmatch(value):
        return Answer("number", Decimal(number[1].replace(",", "")), number[2] or "")
    if _CODE.fullmatch(value):
        return Answer("code", value.upper())
    return Answer("choice", value.lower()) if _WORD.fullmatch(value) else None


def format_answer(answer: Answer) -> str:
    """The line that states `answer`; `parse_final` reads it back as an answer that is the same."""
    value = format(answer.value, "f") if isinstance(answer.value, Decimal) else answer.value
    return f"ANSWER: {value} {answer.unit}".rstrip()


def same(answer: Answer, gold: Answer) -> bool:
    """True where a stated answer has the gold's type, unit and value. More decimals than the gold
    has are rounded half up to the gold's, so 12.304 is 12.30; but 1.5 is not the whole number 2."""
    if answer.type != gold.type or answer.unit != gold.unit:
        return False
    if isinstance(answer.value, Decimal) and isinstance(gold.value, Decimal):
        exponent = gold.value.as_tuple().exponent
        if isinstance(exponent, int) and exponent < 0:
            return answer.value.quantize(gold.value, ROUND_HALF_UP) == gold.value
    return answer.value == gold.value
