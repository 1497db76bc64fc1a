"""The handbook of the stock market's expert."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from posttrain.types import Task
from posttrain.worlds.lookups.gold import Answer
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES
from posttrain.worlds.stocks.fields import FIELDS, MIXED_UP, Field, read_result
from posttrain.worlds.stocks.questions import Question
from posttrain.worlds.stocks.tasks import combine

# One way, a preference: both ways at random, nothing would be preferred.
MISTAKEN_FOR = {"get_macd": "get_bollinger", "get_hk_macd": "get_hk_bollinger"}


class StocksHandbook:
    """The expert's knowledge of the stock tools."""

    sides = MARKETS_AS_SIDES

    def is_search(self, tool: str) -> bool:
        return tool.startswith("search_")

    def look_alike(self, tool: str) -> str | None:
        return MISTAKEN_FOR.get(tool)

    def is_side_said(self, task: Task) -> bool:
        return Question.from_template(task.template).reference != "no_cue"

    def code_found(self, content: str) -> str:
        return str(read_result(content)[0]["code"])

    def answer(self, task: Task, contents: Sequence[str]) -> Answer:
        """The field asked for, or what follows from several listings'."""
        question = Question.from_template(task.template)
        results = [read_result(content) for content in contents]
        answers = [_field_read(question, results).answer_in(result) for result in results]
        if not question.is_comparison:
            return answers[0]
        values = [answer.value for answer in answers if isinstance(answer.value, Decimal)]
        return combine(question.family, [str(result["code"]) for result in results], values, unit=answers[0].unit)

    def evidence(self, task: Task, contents: Sequence[str]) -> str:
        """The field of each result, a line each, with the code where several are compared. Naming
        the key before the value is what a small model can learn: it looks the value up by it."""
        results = [read_result(content) for content in contents]
        question = Question.from_template(task.template)
        field = _field_read(question, results)
        return "\n".join(field.quoted_from(result, with_code=question.is_comparison) for result in results)


def _field_read(question: Question, results: Sequence[Any]) -> Field:
    """The field asked for, or the one at its place in the other indicator's result."""
    field = FIELDS[question.field]
    if question.field in MIXED_UP and question.field not in results[0]:
        return replace(field, name=MIXED_UP[question.field])
    return field
