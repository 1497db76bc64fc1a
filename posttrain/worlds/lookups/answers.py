"""Parses, formats and compares the last line of a message: a typed answer or a question back.

`ANSWER: 380.20 EUR` (number and unit), `ANSWER: 700.N` (code), `ANSWER: done` (one word), or `ASK:
shop`. Only the last line counts, so that an agent cannot list candidates.
"""

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from posttrain.worlds.lookups.gold import Answer

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


def format_ask(ask: Ask) -> str:
    return f"ASK: {ask.what}"


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
