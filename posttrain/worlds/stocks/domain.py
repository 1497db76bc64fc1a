"""The stock market as a domain."""

import random
from collections.abc import Mapping
from itertools import product

from posttrain.types import Split, Task
from posttrain.worlds.lookups.demonstrations import Flaw
from posttrain.worlds.lookups.domain import LookupDomain, flaw_rates_of
from posttrain.worlds.lookups.schedule import KINDS, Cell, Kind, task_of
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES
from posttrain.worlds.stocks.expert import StocksHandbook
from posttrain.worlds.stocks.market import Market
from posttrain.worlds.stocks.params import StocksParams
from posttrain.worlds.stocks.phrasing import REPLIES
from posttrain.worlds.stocks.questions import Question, draw_question
from posttrain.worlds.stocks.references import Directory
from posttrain.worlds.stocks.tasks import POLICY_TEXT, TaskDraft
from posttrain.worlds.stocks.toolset import stock_tools
from posttrain.worlds.tools import Tool

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
    handbook = StocksHandbook()
    separator = "/"

    def __init__(self, world: StocksParams) -> None:
        super().__init__(world, flaw_rates_of(world.flaw_rates, _KNOB_OF_FLAW))
        self._params = world
        self._market = Market(world.seed)
        self._directory = Directory(self._market)
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
        is_paraphrase = split == "test_paraphrase"
        drawn = None if template else draw_question(cell, rng, is_paraphrase=is_paraphrase)
        question = drawn or Question.from_template(str(template))
        draft = TaskDraft(self._directory, self.tools, question, cell, split=split, rng=rng).draft()
        return task_of(draft, cell, MARKETS_AS_SIDES.label, split=split, template=question.template, system=POLICY_TEXT)

    def side_reply(self, task: Task) -> str:
        return REPLIES[task.labels["language"], task.labels["market"]][task.split == "test_paraphrase"]
