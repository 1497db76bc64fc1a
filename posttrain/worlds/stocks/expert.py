"""What an expert knows about the stock market's tools; `plays.py` does the rest."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from posttrain.types import Answer, Task
from posttrain.worlds.stocks.fields import FIELDS, MIXED_UP, read_result
from posttrain.worlds.stocks.offers import LOOK_ALIKE
from posttrain.worlds.stocks.questions import Question
from posttrain.worlds.stocks.tasks import combine
from posttrain.worlds.stocks.toolset import twin


class StocksHandbook:
    """As `plays.Handbook` has it."""

    def is_search(self, tool: str) -> bool:
        return tool.startswith("search_")

    def is_of_hk(self, tool: str) -> bool:
        return "_hk_" in tool

    def twin(self, tool: str) -> str:
        return twin(tool)

    def look_alike(self, tool: str) -> str | None:
        return LOOK_ALIKE.get(tool)

    def is_market_said(self, task: Task) -> bool:
        return Question.from_template(task.template).reference != "no_cue"

    def code_found(self, content: str) -> str:
        """The first hit's."""
        return str(read_result(content)[0]["code"])

    def answer(self, task: Task, contents: Sequence[str]) -> Answer:
        """The one field asked for, or what follows from several; where the other indicator was called, the value at the same place."""
        question = Question.from_template(task.template)
        field = FIELDS[question.field]
        results = [read_result(content) for content in contents]
        if question.family in ("field", "bar"):
            if question.field in MIXED_UP and question.field not in results[0]:
                field = replace(field, name=MIXED_UP[question.field])
            return field.answer_in(results[0])
        answers = [field.answer_in(result) for result in results]
        values = [answer.value for answer in answers if isinstance(answer.value, Decimal)]
        return combine(question.family, [str(result["code"]) for result in results], values, unit=answers[0].unit)
