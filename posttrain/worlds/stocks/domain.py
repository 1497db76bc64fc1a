"""The stock market as a domain."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any

from posttrain.types import Split, Task
from posttrain.worlds.lookups.demonstrations import Flaw
from posttrain.worlds.lookups.domain import LookupDomain, flaw_rates_of
from posttrain.worlds.lookups.gold import Answer
from posttrain.worlds.lookups.schedule import KINDS, Cell, Kind, task_of
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES
from posttrain.worlds.stocks.fields import FIELDS, MIXED_UP, Field, read_result
from posttrain.worlds.stocks.market import Market
from posttrain.worlds.stocks.params import StocksParams
from posttrain.worlds.stocks.phrasing import REPLIES, drawn, groups_of
from posttrain.worlds.stocks.questions import Question, draw_question
from posttrain.worlds.stocks.references import Directory
from posttrain.worlds.stocks.tasks import POLICY_TEXT, TaskDraft, combine
from posttrain.worlds.stocks.toolset import stock_tools
from posttrain.worlds.tools import Tool

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


_MARKETS: dict[Kind, tuple[str, ...]] = {
    "tool_selection": ("a", "hk"),
    "multi_step_planning": ("a", "hk", "both"),
    "timing_decision": ("a", "hk", "none"),
    "tool_retrieval": ("a", "hk"),
}
# Demonstrations as they are found: mainland questions abound, those that need planning or the
# decision not to call are rarer.
_SFT_KIND_WEIGHTS: dict[Kind, int] = {
    "tool_selection": 4,
    "multi_step_planning": 3,
    "timing_decision": 2,
    "tool_retrieval": 2,
}
_KNOB_OF_FLAW: dict[Flaw, str] = {
    "wrong_side": "wrong_market",
    "look_alike": "indicator_mixup",
    "side_flip": "market_flip",
}
_SFT_MARKET_WEIGHTS = {"a": 4, "hk": 2, "both": 1, "none": 1}


class StocksDomain(LookupDomain):
    """Drawing the companies takes a quarter of a second; prices are drawn when asked for."""

    name = "stocks"
    more_splits: Sequence[Split] = ("dev_paraphrase", "test_noisy")
    handbook = StocksHandbook()
    separator = "/"

    def __init__(self, world: StocksParams) -> None:
        super().__init__(world, flaw_rates_of(world.flaw_rates, _KNOB_OF_FLAW))
        self._params = world
        self._market = Market(world.seed)
        self._directory = Directory(self._market, world.num_wordings)
        self.tools: Mapping[str, Tool] = stock_tools(self._market)

    def weights(self, split: Split) -> dict[Cell, int]:
        difficulties, languages = range(1, self._params.max_difficulty + 1), self._params.languages
        cells = [
            Cell(kind, market, language, difficulty)
            for difficulty, market, language in product(difficulties, ("a", "hk", "both", "none"), languages)
            for kind in KINDS
            if market in _MARKETS[kind]
        ]
        if split == "sft":
            return {cell: _SFT_KIND_WEIGHTS[cell.kind] * _SFT_MARKET_WEIGHTS[cell.side] for cell in cells}
        return {cell: 6 // len(_MARKETS[cell.kind]) for cell in cells}  # kinds are equal, and within each its markets

    def make(self, cell: Cell, split: Split, rng: random.Random, *, template: str | None = None) -> Task:
        if template:
            question = Question.from_template(template)
        else:
            group = drawn(groups_of(split), rng)
            question = draw_question(cell, rng, group=group, num_wordings=self._params.num_wordings)
        draft = TaskDraft(self._directory, self.tools, question, cell, split=split, rng=rng).draft()
        return task_of(draft, cell, MARKETS_AS_SIDES.label, split=split, template=question.template, system=POLICY_TEXT)

    def side_reply(self, task: Task) -> str:
        wordings = REPLIES[task.labels["language"], task.labels["market"]]
        texts = wordings.of(groups_of(task.split)[0], self._params.num_wordings)
        return drawn(texts, random.Random(task.task_id))
