"""The stock market as a domain: its tasks in order, a world for each episode, the expert."""

import random
from collections.abc import Mapping, Sequence
from itertools import product

from posttrain.types import Split, Task
from posttrain.worlds.lookups.demonstrations import Flaw, draw_slips, play
from posttrain.worlds.lookups.gold import gold_of
from posttrain.worlds.lookups.grade import SCORES
from posttrain.worlds.lookups.schedule import KINDS, Cell, Kind, cell_of, cells_in_turn
from posttrain.worlds.lookups.world import LookupWorld
from posttrain.worlds.protocol import Expert, World
from posttrain.worlds.scripts import ScriptedExpert
from posttrain.worlds.stocks.expert import StocksHandbook
from posttrain.worlds.stocks.market import Market
from posttrain.worlds.stocks.params import StocksParams
from posttrain.worlds.stocks.phrasing import market_reply
from posttrain.worlds.stocks.sides import MARKETS_AS_SIDES
from posttrain.worlds.stocks.tasks import TaskMaker
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
_SFT_MARKET_WEIGHTS = {"a": 4, "hk": 2, "both": 1, "none": 1}
_NUM_DRAWS = 100


class StocksDomain:
    """Made once per process; drawing the companies takes a quarter of a second, prices are drawn
    when somebody looks."""

    name = "stocks"
    scores: Sequence[str] = SCORES

    def __init__(self, world: StocksParams) -> None:
        self._params = world
        self._market = Market(world.seed)
        self._handbook = StocksHandbook()
        self.tools: Mapping[str, Tool] = stock_tools(self._market)
        self._maker = TaskMaker(self._market, self.tools)
        rates = world.flaw_rates
        self._flaw_rates: Mapping[Flaw, float] = {
            "wrong_side": rates.wrong_market,
            "give_up": rates.give_up,
            "look_alike": rates.indicator_mixup,
            "redundant_call": rates.redundant_call,
            "malformed_json": rates.malformed_json,
            "side_flip": rates.market_flip,
            "repeated_ask": rates.repeated_ask,
        }

    def tasks(self, split: Split, count: int) -> list[Task]:
        """As `protocol.Domain` has it. Cells come in turn, in sft by their weights; no two tasks of
        a split have one text."""
        tasks: list[Task] = []
        seen: set[str] = set()
        for index, cell in zip(range(count), cells_in_turn(self._weights(split)), strict=False):
            for attempt in range(_NUM_DRAWS):
                task = self._maker.make(cell, split, random.Random(f"{self._params.seed}/{split}/{index}/{attempt}"))
                if task.messages[-1].content not in seen:
                    break
            else:
                raise ValueError(
                    f"{split} has no more than {index} different tasks and {count} are wanted: "
                    f"the {cell.kind} questions of its companies on market "
                    f"{cell.side} are used up; lower world.num_{split.partition('_')[0]}_tasks"
                )
            seen.add(task.messages[-1].content)
            tasks.append(task)
        return tasks

    def open(self, task: Task) -> World:
        """As `protocol.Domain` has it."""
        return LookupWorld(task, self.tools, sides=MARKETS_AS_SIDES, told=_told)

    def expert(self, task: Task, *, seed: int, is_flawless: bool, reasoning_frac: float) -> Expert:
        """As `protocol.Domain` has it."""
        rng = random.Random(f"{task.task_id}/{seed}")
        slips = draw_slips(task, self._handbook, {} if is_flawless else self._flaw_rates, rng)
        return ScriptedExpert(play(task, self._handbook, slips, is_reasoning=rng.random() < reasoning_frac))

    def regenerate(self, task: Task, *, seed: int) -> Task:
        """As `protocol.Domain` has it. A text without a company may come again: its template has
        only so many."""
        cell = cell_of(task, MARKETS_AS_SIDES.label)
        return self._maker.make(cell, task.split, random.Random(f"{task.task_id}/{seed}"), template=task.template)

    def describe_goal(self, task: Task) -> str:
        """As `protocol.GoalDomain` has it."""
        return str(gold_of(task))

    def _weights(self, split: Split) -> dict[Cell, int]:
        difficulties = range(1, self._params.max_difficulty + 1)
        rows = [
            (market, language, difficulty)
            for difficulty, market, language in product(
                difficulties, ("a", "hk", "both", "none"), self._params.languages
            )
        ]
        cells = [Cell(kind, *row) for row in rows for kind in KINDS if row[0] in _MARKETS[kind]]
        if split == "sft":
            return {cell: _SFT_KIND_WEIGHTS[cell.kind] * _SFT_MARKET_WEIGHTS[cell.side] for cell in cells}
        return {cell: 6 // len(_MARKETS[cell.kind]) for cell in cells}  # kinds are equal, and within each its markets


def _told(task: Task) -> str:
    """What the user says to one who asks which market is meant."""
    labels = task.labels
    return market_reply(labels["language"], labels["market"], is_paraphrase=task.split == "test_paraphrase")
