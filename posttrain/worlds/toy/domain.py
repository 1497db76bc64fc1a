"""A world small enough to read in one go: one chain, two shops, and the same goods on both shelves
under two codes and in two currencies.

It has every kind of task, the question back and every flaw, so that each stage runs on it in the
tests. To add a tool: its function and text in `_shop_tools`, what it tells of a good in
`_drawn_items`, and where tasks ask for it, its question in `_TEXTS`, `_askable` and `_TOLD_BY`.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product

from posttrain.types import JsonValue, Split, Task
from posttrain.worlds.lookups.domain import LookupDomain, flaw_rates_of
from posttrain.worlds.lookups.gold import Answer, Gold, GoldCall
from posttrain.worlds.lookups.schedule import Cell, Draft, Kind, offered, task_of
from posttrain.worlds.lookups.sides import Sides
from posttrain.worlds.shares import share_of
from posttrain.worlds.tools import Tool, ToolError, tool_from
from posttrain.worlds.toy.params import ToyParams

SYSTEM = "You keep two shops. End with `ANSWER: <value>`, or ask with `ASK: shop`. Use only the tools offered."
CURRENCY = {"north": "EUR", "south": "USD"}
TWIN = {"north": "", "south": "south_"}  # get_shelf, get_south_shelf
_COLOUR_TEXT = "red红 blue蓝 green绿 black黑 white白 gold金 old旧 new新 big大 small小"
_GOOD_TEXT = (
    "pen笔 cup杯 hat帽 lamp灯 bag包 box盒 book书 shoe鞋 fan扇 key锁 bowl碗 drum鼓 bell铃 rope绳 "
    "card卡 sock袜 ring戒 coat衣 desk桌 clock钟"
)
_MAX_OTHERS = 4  # tools that a task of retrieval offers beside those that can be mistaken
_SHOPS: dict[Kind, tuple[str, ...]] = {
    "tool_selection": ("north", "south"),
    "multi_step_planning": ("north", "south"),
    "timing_decision": ("north", "south", "none"),
    "tool_retrieval": ("north", "south"),
}
_SHOP = {("north", "en"): "north", ("south", "en"): "south", ("north", "zh"): "北店", ("south", "zh"): "南店"}
SHOPS_AS_SIDES = Sides(
    label="shop",
    home="north",
    marked="south",
    words={
        ("north", "en"): "shop: north",
        ("south", "en"): "shop: south",
        ("north", "zh"): "店: 北",
        ("south", "zh"): "店: 南",
    },
    stated=re.compile(r"(?:shop|店)\s*[:：]\s*(?:(?P<home>north|北)|(?P<marked>south|南))", re.IGNORECASE),
)
_LOOK_ALIKE = {"sales": "returns", "returns": "sales"}
_TOLD_BY = {"price": "shelf", "count": "shelf", "dearer": "shelf", "sold": "sales", "returned": "returns"}  # get_…
# (what is asked, language): the text in every split, the text in test_paraphrase only
_TEXTS: dict[tuple[str, str], tuple[str, str]] = {
    ("price", "en"): ("Price of {x}?", "What does {x} cost?"),
    ("price", "zh"): ("{x}价格?", "{x}卖多少钱?"),
    ("count", "en"): ("How many {x}?", "Number of {x} left?"),
    ("count", "zh"): ("{x}有几件?", "{x}还剩多少件?"),
    ("sold", "en"): ("How many {x} went out?", "Units of {x} that buyers took?"),
    ("sold", "zh"): ("{x}卖出几件?", "买走了多少件{x}?"),
    ("returned", "en"): ("How many {x} came back?", "Units of {x} that buyers brought in again?"),
    ("returned", "zh"): ("{x}退回几件?", "又被拿回来多少件{x}?"),
    ("dearer", "en"): ("Dearer: {x} or {y}?", "Which costs more, {x} or {y}?"),
    ("dearer", "zh"): ("{x}和{y}哪个贵?", "{x}还是{y}价更高?"),
    ("given", "en"): ("{x} is {v}. Its price?", "You see {v} on {x}. What does it cost?"),
    ("given", "zh"): ("{x}是{v},价格?", "{x}标着{v},卖多少?"),
    ("stop", "en"): ("Never mind {x}, thanks.", "Forget {x}, that is all."),
    ("stop", "zh"): ("不用看{x}了,谢谢", "{x}就算了吧"),
}


@dataclass(frozen=True, slots=True)
class Item:
    """`codes` and `shelf` (the values that the tools give) have an entry for each shop."""

    item_id: str
    names: Mapping[str, str]
    codes: Mapping[str, str]
    shelf: Mapping[str, Mapping[str, JsonValue]]


class ToyHandbook:
    """The expert's knowledge of the two shops' tools."""

    sides = SHOPS_AS_SIDES

    def is_search(self, tool: str) -> bool:
        return tool.startswith("find_")

    def look_alike(self, tool: str) -> str | None:
        verb, _, about = tool.rpartition("_")
        return f"{verb}_{_LOOK_ALIKE[about]}" if about in _LOOK_ALIKE else None

    def is_side_said(self, task: Task) -> bool:
        return task.labels["difficulty"] != "3" or task.labels["kind"] in ("multi_step_planning", "timing_decision")

    def code_found(self, content: str) -> str:
        return str(json.loads(content)["code"])

    def answer(self, task: Task, contents: Sequence[str]) -> Answer:
        """The dearer one's code, a price, or the number that the result counts."""
        results = [json.loads(content, parse_float=Decimal) for content in contents]
        asked = task.template.partition("/")[0]
        if asked == "dearer":
            return Answer("code", max(results, key=lambda result: Decimal(result["price"]))["code"])
        if asked == "price":
            return Answer("number", Decimal(results[0]["price"]), results[0]["currency"])
        counts = {field: value for field, value in results[0].items() if field not in ("code", "price", "currency")}
        return Answer("number", Decimal(counts.get(asked, next(iter(counts.values())))), "pcs")

    def evidence(self, task: Task, contents: Sequence[str]) -> str:
        """None: the toy's results are short."""
        del task, contents
        return ""


class ToyDomain(LookupDomain):
    """200 goods, a quarter for each of sft, rl, dev and test."""

    name = "toy"
    handbook = ToyHandbook()
    separator = " "

    def __init__(self, world: ToyParams) -> None:
        super().__init__(world, flaw_rates_of(world.flaw_rates, {"wrong_side": "wrong_shop", "side_flip": "shop_flip"}))
        self._max_difficulty = world.max_difficulty
        self._items = _drawn_items(random.Random(f"toy {world.seed}"))
        self.tools: Mapping[str, Tool] = _tools(self._items)

    def weights(self, split: Split) -> dict[Cell, int]:
        """Demonstrations have fewer tasks of the south shop and of retrieval."""
        difficulties = range(1, self._max_difficulty + 1)
        cells = [
            Cell(kind, shop, language, difficulty)
            for difficulty, language, kind in product(difficulties, ("zh", "en"), _SHOPS)
            for shop in _SHOPS[kind]
        ]
        rare = [cell for cell in cells if split == "sft" and (cell.side == "south" or cell.kind == "tool_retrieval")]
        return {cell: 1 if cell in rare else 2 for cell in cells}

    def side_reply(self, task: Task) -> str:
        return _SHOP[task.labels["shop"], task.labels["language"]]

    def make(self, cell: Cell, split: Split, rng: random.Random, *, template: str | None = None) -> Task:
        asked = template.split("/")[0] if template else rng.choice(_askable(cell))
        items = self._draw(cell, split, asked, rng)
        x, y = (_mention(item, cell, asked) for item in items)
        shop = "north" if cell.side == "none" else cell.side
        answer, calls = _gold(items, shop, asked, cell)
        price = f"{items[0].shelf[shop]['price']:.2f} {CURRENCY[shop]}"
        text = _TEXTS[asked, cell.language][split == "test_paraphrase"].format(x=x, y=y, v=price)
        asks = "shop" if cell.kind == "timing_decision" and asked == "price" else None
        tools = tuple(self.tools)
        if cell.kind == "tool_retrieval":
            mistaken = {"get_sales", "get_returns"}  # both shops': what can be mistaken is offered
            needed = mistaken | {SHOPS_AS_SIDES.without_mark(call.name) for call in calls}
            names = {name for name in tools if SHOPS_AS_SIDES.without_mark(name) in needed}
            names |= offered(set(tools) - names, rng.randint(0, _MAX_OTHERS), rng)
            tools = tuple(name for name in tools if name in names)
        goods = tuple(item.item_id for item in items[: 2 if asked == "dearer" else 1])
        draft = Draft(text, goods, tools, Gold(answer, calls, asks))
        template = f"{asked}/{'paraphrase' if split == 'test_paraphrase' else 'plain'}"
        return task_of(draft, cell, SHOPS_AS_SIDES.label, split=split, template=template, system=SYSTEM)

    def _draw(self, cell: Cell, split: Split, asked: str, rng: random.Random) -> list[Item]:
        """Two goods with different prices, the first in one or both shops as the cell needs."""
        shop = "north" if cell.side == "none" else cell.side
        mine = share_of(split, self._items)
        fitting = [item for item in mine if shop in item.codes]
        if cell.kind == "timing_decision" and asked == "price":
            fitting = [item for item in fitting if len(item.codes) == 2]
        elif cell.difficulty == 3 and cell.kind in ("tool_selection", "tool_retrieval"):
            fitting = [item for item in fitting if len(item.codes) == 1]
        first = rng.choice(fitting)
        others = [item for item in fitting if item.shelf[shop]["price"] != first.shelf[shop]["price"]]
        return [first, rng.choice(others)]


def _askable(cell: Cell) -> tuple[str, ...]:
    match cell.kind, cell.side:
        case "multi_step_planning", _:
            return ("dearer",)
        case "timing_decision", "none":
            return ("stop",)
        case "timing_decision", _:
            return ("given",) if cell.difficulty == 1 else ("price",)
        case "tool_retrieval", _:
            return ("sold", "returned")
    return ("price", "count")


def _mention(item: Item, cell: Cell, asked: str) -> str:
    """By code at difficulty 1, by name and shop at 2, by name at 3; timing tasks by name alone."""
    name = item.names[cell.language]
    if cell.kind == "timing_decision" or (cell.difficulty == 3 and asked != "dearer"):
        return name
    if cell.difficulty == 1:
        return item.codes[cell.side]
    shop = _SHOP[cell.side, cell.language]
    return f"{shop}{name}" if cell.language == "zh" else f"{shop} {name}"


def _gold(items: list[Item], shop: str, asked: str, cell: Cell) -> tuple[Answer, tuple[GoldCall, ...]]:
    if asked == "stop":
        return Answer("choice", "done"), ()
    wanted = items if asked == "dearer" else items[:1]
    calls: list[GoldCall] = []
    for item in wanted if asked != "given" else []:
        if cell.difficulty > 1:
            is_cued = asked == "dearer" or cell.difficulty == 2 or cell.kind == "timing_decision"
            names = (item.names[cell.language], item.names["en" if cell.language == "zh" else "zh"])
            shops = [shop] if is_cued else ["north", "south"][: ["north", "south"].index(shop) + 1]
            calls += [GoldCall(f"find_{TWIN[each]}item", {"name": names}, holds_answer=False) for each in shops]
        calls.append(GoldCall(f"get_{TWIN[shop]}{_TOLD_BY[asked]}", {"code": (item.codes[shop],)}))
    if asked == "dearer":
        dearer = max(wanted, key=lambda item: float(str(item.shelf[shop]["price"])))
        return Answer("code", dearer.codes[shop]), tuple(calls)
    if asked in ("price", "given"):
        return Answer("number", Decimal(f"{items[0].shelf[shop]['price']:.2f}"), CURRENCY[shop]), tuple(calls)
    return Answer("number", Decimal(str(items[0].shelf[shop][asked])), "pcs"), tuple(calls)


def _drawn_items(rng: random.Random) -> list[Item]:
    pairs = list(product(_COLOUR_TEXT.split(), _GOOD_TEXT.split()))
    rng.shuffle(pairs)
    numbers = iter(rng.sample(range(100, 1000), k=2 * len(pairs)))
    items = []
    for index, (colour, good) in enumerate(pairs):
        names = {"zh": colour[-1] + good[-1], "en": f"{colour[:-1]} {good[:-1]}"}
        # three of four goods are in both shops
        shops = ("north", "south") if index // 4 % 4 else (("north",), ("south",))[index // 16 % 2]
        codes = {shop: f"{next(numbers)}.{shop[0].upper()}" for shop in shops}
        shelf = {
            shop: {
                "price": rng.randrange(100, 9900) / 100,
                "count": rng.randrange(2, 99),
                "sold": rng.randrange(2, 99),
                "returned": rng.randrange(2, 99),
            }
            for shop in shops
        }
        items.append(Item(f"item{index}", names, codes, shelf))
    return items


def _tools(items: list[Item]) -> dict[str, Tool]:
    return {tool.name: tool for shop in ("north", "south") for tool in _shop_tools(shop, items)}


def _shop_tools(shop: str, items: list[Item]) -> Iterator[Tool]:
    by_code = {item.codes[shop]: item for item in items if shop in item.codes}
    by_name = {name: item for item in by_code.values() for name in item.names.values()}

    def find(name: str) -> JsonValue:
        if name not in by_name:
            raise ToolError(f"not found in the {shop} shop: {name}")
        return {"code": by_name[name].codes[shop], "name": name}

    def look_up(code: str, *fields: str) -> dict[str, JsonValue]:
        if code not in by_code:
            raise ToolError(f"no such code in the {shop} shop: {code}")
        return {"code": code} | {field: by_code[code].shelf[shop][field] for field in fields}

    def shelf(code: str) -> JsonValue:
        return look_up(code, "price", "count") | {"currency": CURRENCY[shop]}

    def sales(code: str) -> JsonValue:
        return look_up(code, "sold")

    def returns(code: str) -> JsonValue:
        return look_up(code, "returned")

    described = {
        find: "Find a good by its name",
        shelf: "Price and number on the shelf",
        sales: "Units sold last week",
        returns: "Units brought back last week",
    }
    for function, text in described.items():
        argument = "name: the good's name, Chinese or English" if function is find else "code: the good's code"
        function.__doc__ = f"{text}, {shop} shop.\n\nArgs:\n    {argument}"
        name = f"find_{TWIN[shop]}item" if function is find else f"get_{TWIN[shop]}{function.__name__}"
        yield tool_from(function, name=name, is_instant=True, side_effect="none")
