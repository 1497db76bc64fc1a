"""Makes a task of a question, and asks the market's own tools for the gold answer."""

import random
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

from posttrain.types import JsonValue, Split
from posttrain.worlds.lookups.gold import Answer, Gold, GoldCall
from posttrain.worlds.lookups.schedule import Cell, Draft, offered
from posttrain.worlds.stocks.codes import MARKETS_AS_SIDES, MarketName
from posttrain.worlds.stocks.fields import AVERAGES, FIELDS, PRICES, Field
from posttrain.worlds.stocks.market import Company
from posttrain.worlds.stocks.phrasing import (
    FIELD_WORDS,
    FRAMES,
    GROUPS,
    PURPOSE_WORDS,
    chatty,
    drawn,
    endings,
    misspelt,
)
from posttrain.worlds.stocks.questions import Question
from posttrain.worlds.stocks.references import Directory, Mention, search_call
from posttrain.worlds.tools import Tool

# The system message of every task. It is prompt text and golden-tested.
POLICY_TEXT = """\
You answer questions about A-share (mainland China) and Hong Kong stocks. All prices are simulated.
- Use only the tools you are offered. Those with hk in their name are for Hong Kong, the others for A-shares; each \
refuses the other's codes.
- A company may be listed in both markets under one name, with two codes and two currencies. Follow the market that \
the user means: a word for it, its
  exchange, or its currency (CNY: A-shares, HKD: Hong Kong).
- If the user says that a company is listed in both markets but not which one is meant, ask before the first call; end \
with the line ASK: market
- If no market is said or hinted at, search A-shares first, then Hong Kong.
- "Not found" is no answer: try the other name that the user gave, or the other market.
- Take current values from the tool that reports them. If the answer is in the conversation already, or the user wants \
nothing more, call no tool.
- Do not repeat a call that succeeded.
End your last message with one line:
ANSWER: <value>
A number carries its unit: CNY or HKD; % for a change; x for P/E and P/B; wan for volumes in 10,000 shares; CNYm or \
HKDm for turnover in millions;
shares for a lot size. For example ANSWER: 380.20 HKD. A listing is given by its code (ANSWER: 00700.HK), a trend by \
its word (ANSWER: rising).
When the user wants nothing more: ANSWER: done"""

LOOK_ALIKE = {
    "get_macd": "get_bollinger",
    "get_bollinger": "get_macd",
    "get_hk_macd": "get_hk_bollinger",
    "get_hk_bollinger": "get_hk_macd",
}
_MAX_OFFERED = 10
_USUAL = ("search_stock", "get_realtime_quote")  # where nothing needs to be called, the temptation is there
_CANDIDATES = {"higher": 2, "lower": 2, "difference": 2, "second": 3}
_MAX_RANKED = 5
_NUM_DRAWS = 200
_DEFAULTS: Mapping[str, Mapping[str, JsonValue]] = {  # parameters that need not be given
    "get_macd": {"fast": 12, "slow": 26, "signal": 9},
    "get_bollinger": {"window": 20, "width": 2.0},
    "get_volume_trend": {"short": 5, "long": 20},
}


class TaskDraft:
    """Drafts the task of one question; deterministic in the random numbers that it is given."""

    def __init__(
        self,
        directory: Directory,
        tools: Mapping[str, Tool],
        question: Question,
        cell: Cell,
        split: Split,
        rng: random.Random,
    ) -> None:
        self._market, self._directory, self._tools = directory.market, directory, tools
        self._question, self._cell, self._split, self._rng = question, cell, split, rng

    def draft(self) -> Draft:
        match self._question.family:
            case "field":
                return self._one_field()
            case "bar":
                return self._bar()
            case "higher" | "lower" | "second" | "difference":
                return self._several()
            case "pair":
                return self._pair()
            case "given" | "given_two":
                return self._given()
            case "stop":
                company = self._draw("a" if self._rng.random() < 0.5 else "hk")
                return self._finish(Gold(Answer("choice", "done")), [company], x=self._name(company))
            case "ending":
                ending = self._rng.choice(endings(self._split, self._cell.language))
                return self._finish(Gold(Answer("choice", "done")), [], ending=ending)
        raise ValueError(f"no family of questions is called {self._question.family!r}")

    def _one_field(self) -> Draft:
        company = self._draw(self._side)
        mention = self._mention(company, self._side)
        calls = (*mention.searches, self._call(mention, self._side))
        asks = "market" if self._question.reference == "both" else None
        gold = Gold(self._answer(company, self._side), calls, asks)
        return self._finish(gold, [company], x=mention.text, f=self._words())

    def _bar(self) -> Draft:
        company = self._draw(self._side)
        mention = self._mention(company, self._side)
        bars = self._market.bars(self._code(company, self._side))
        date = str(bars.dates_T[self._rng.randrange(len(bars) - 60, len(bars) - 1)])
        arguments: dict[str, tuple[JsonValue, ...]] = {
            "code": mention.codes,
            "start_date": (date,),
            "limit": (1, None, *range(2, 11)),
            "period": (None, "daily"),
        }
        calls = (*mention.searches, GoldCall(self._field.tool_on(self._side), arguments))
        result = self._ask(self._field.tool_on(self._side), code=mention.codes[0], start_date=date, limit=1)
        gold = Gold(_two_decimals(self._field.answer_in(result)), calls)
        return self._finish(gold, [company], x=mention.text, f=self._words(), d=date)

    def _several(self) -> Draft:
        family = self._question.family
        size = _CANDIDATES[family] if family != "second" else self._rng.randint(3, _MAX_RANKED)
        sides: list[MarketName] = [self._side] * size
        if self._cell.side == "both":
            sides = [("a", "hk")[index % 2] for index in range(size)]
            self._rng.shuffle(sides)
        companies, values = self._rivals(sides)
        mentions = [self._mention(company, side) for company, side in zip(companies, sides, strict=True)]
        calls: list[GoldCall] = []
        for mention, side in zip(mentions, sides, strict=True):
            calls += [*mention.searches, self._call(mention, side)]
        codes = [self._code(company, side) for company, side in zip(companies, sides, strict=True)]
        answer = combine(family, codes, values, unit=self._field.unit(self._side))
        comma = "、" if self._cell.language == "zh" else ", "
        names = [mention.text for mention in mentions]
        text = {"x": comma.join(names)} if family == "second" else {"x": names[0], "y": names[1]}
        return self._finish(Gold(answer, tuple(calls)), companies, f=self._words(), **text)

    def _rivals(self, sides: Sequence[MarketName]) -> tuple[list[Company], list[Decimal]]:
        """Different companies with different values: a question with two right answers is none.
        Below level 3 one value is negative, one positive."""
        for _ in range(_NUM_DRAWS):
            companies = [self._draw(side) for side in sides]
            values = [self._number(company, side) for company, side in zip(companies, sides, strict=True)]
            is_apart = self._cell.difficulty == 3 or min(values) < 0 < max(values)
            if is_apart and len(set(values)) == len(sides) == len({company.company_id for company in companies}):
                return companies, values
        raise ValueError(
            f"no {len(sides)} companies of {self._split} differ in {self._question.field}; the market is too small"
        )

    def _pair(self) -> Draft:
        """One company's two listings against each other."""
        for _ in range(_NUM_DRAWS):
            company = self._directory.draw(self._split, "a", "both", self._rng)
            a, hk = self._number(company, "a"), self._number(company, "hk")
            if a != hk:
                break
        name = self._name(company)
        sides: tuple[MarketName, ...] = ("a", "hk")
        calls: list[GoldCall] = []
        for side in sides:
            calls += [search_call(side, name, company), self._call(self._mention(company, side), side)]
        answer = Answer("code", self._code(company, "a" if a > hk else "hk"))
        return self._finish(Gold(answer, tuple(calls)), [company], x=name, f=self._words())

    def _given(self) -> Draft:
        """The quote is in the question already."""
        company = self._draw(self._side)
        answer = self._answer(company, self._side)
        words = {"x": self._name(company), "f": self._words(), "v": f"{answer.value} {answer.unit}"}
        other = self._rng.choice([name for name in PRICES if name != self._question.field])
        if self._question.family == "given_two":
            beside = self._answer(company, self._side, FIELDS[other])
            words |= {"g": self._words(other), "w": f"{beside.value} {beside.unit}"}
        return self._finish(Gold(answer), [company], **words)

    @property
    def _field(self) -> Field:
        return FIELDS[self._question.field]

    @property
    def _side(self) -> MarketName:
        return "hk" if self._cell.side == "hk" else "a"

    def _draw(self, side: MarketName) -> Company:
        return self._directory.draw(self._split, side, self._question.reference, self._rng)

    def _mention(self, company: Company, side: MarketName) -> Mention:
        return self._directory.mention(company, side, self._question, self._cell.language, self._rng)

    def _name(self, company: Company) -> str:
        return company.name_zh if self._cell.language == "zh" else company.name_en

    def _words(self, field: str | None = None) -> str:
        """The name of a field; where a tool must be found, what it is good for."""
        table = PURPOSE_WORDS if self._cell.kind == "tool_retrieval" else FIELD_WORDS
        language = self._cell.language
        spoken = {"zh": "en", "en": "zh"}[language] if self._question.group == "mixed" else language
        options = table[field or self._question.field, spoken].of(self._question.group, self._directory.num_wordings)
        words = drawn(options, self._rng)
        return misspelt(words, language, self._rng) if self._question.group == "misspelt" else words

    def _call(self, mention: Mention, side: MarketName) -> GoldCall:
        """A moving average may be asked for alone or with the usual ones; what is usual may be
        said."""
        arguments: dict[str, tuple[JsonValue, ...]] = {"code": mention.codes}
        arguments |= {name: (None, usual) for name, usual in _DEFAULTS.get(self._field.tool, {}).items()}
        if self._question.field in AVERAGES:
            arguments["windows"] = (None, [int(self._question.field.removeprefix("ma"))], [5, 10, 20, 60])
        return GoldCall(self._field.tool_on(side), arguments)

    def _answer(self, company: Company, side: MarketName, field: Field | None = None) -> Answer:
        field = field or self._field
        return _two_decimals(field.answer_in(self._ask(field.tool_on(side), code=self._code(company, side))))

    def _number(self, company: Company, side: MarketName) -> Decimal:
        value = self._answer(company, side).value
        assert isinstance(value, Decimal), f"{self._question.field} is compared and is not a number"
        return value

    def _code(self, company: Company, side: MarketName) -> str:
        listing = company.on(side)
        assert listing is not None, f"{company.company_id} is not listed on {side}"
        return listing.code

    def _ask(self, tool: str, **arguments: JsonValue) -> Any:
        return self._tools[tool].function(**arguments)

    def _finish(self, gold: Gold, companies: Sequence[Company], **words: str) -> Draft:
        question = self._question
        sentences = FRAMES[question.family, self._cell.language].of(question.group, self._directory.num_wordings)
        tools = _offer(list(self._tools), {call.name for call in gold.calls}, question.field, self._rng)
        text = sentences[question.phrase].format(**words)
        is_noisy = question.group in GROUPS["test_noisy"]
        if question.group == "chatty" or (is_noisy and "f" not in words):  # nothing to misspell but a name
            text = chatty(text, self._cell.language, self._rng)
        return Draft(text, tuple(company.company_id for company in companies), tools, gold)


def _offer(all_tools: Sequence[str], needed: Collection[str], field: str, rng: random.Random) -> tuple[str, ...]:
    """4 to 10 tools in the domain's order, and no other that tells the field as well: a right
    answer must not come from a tool that gold does not know."""
    names = set(needed or _USUAL)
    names |= {LOOK_ALIKE[name] for name in names & LOOK_ALIKE.keys()}
    names |= {MARKETS_AS_SIDES.twin(name) for name in names}
    telling = FIELDS[field].also_told_by if field in FIELDS else ()
    barred = {*telling, *(MARKETS_AS_SIDES.twin(name) for name in telling)}
    others = [name for name in all_tools if name not in names and name not in barred]
    size = rng.randint(4, _MAX_OFFERED)
    names |= offered(others, max(size - len(names), 0), rng)
    return tuple(name for name in all_tools if name in names)


def combine(family: str, codes: Sequence[str], values: Sequence[Decimal], *, unit: str) -> Answer:
    """`second` of 3, 9, 5 is the code of 5; `difference` is the first less the second."""
    if family == "difference":
        return Answer("number", values[0] - values[1], unit)
    places = sorted(range(len(codes)), key=lambda index: values[index], reverse=True)
    place = {"higher": 0, "pair": 0, "second": 1, "lower": -1}[family]
    return Answer("code", codes[places[place]])


def _two_decimals(answer: Answer) -> Answer:
    """Prices and multiples to the cent; counts and words as they are."""
    if not isinstance(answer.value, Decimal) or answer.unit in ("wan", "shares"):
        return answer
    return Answer(answer.type, answer.value.quantize(Decimal("0.01")), answer.unit)
