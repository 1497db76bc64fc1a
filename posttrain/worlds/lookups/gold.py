"""The goal of a lookup task, which carries it as JSON: an answer and the calls that find it."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
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
