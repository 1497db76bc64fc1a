"""The way a question names its company, and the searches that lead from the name to a code."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posttrain.types import JsonValue, Split
from posttrain.worlds.lookups.gold import GoldCall
from posttrain.worlds.stocks.codes import MARKETS, MARKETS_AS_SIDES, MarketName
from posttrain.worlds.stocks.market import Company, Listing, Market
from posttrain.worlds.stocks.names import BRAND_WORDS, INDUSTRIES, name_key
from posttrain.worlds.stocks.phrasing import BOTH, CUES, drawn
from posttrain.worlds.stocks.questions import Question, Reference

# of the companies that a cue names; the trap lies in Hong Kong
_SHARE_DUAL: dict[MarketName, float] = {"a": 0.3, "hk": 0.9}
_SHARE_UNKNOWN_FIRST = 0.75  # of the questions with two spellings, the unknown one stands first
_SHARE_SHORT_NAME = 0.2  # of the names are a short form or the English name with its industry


@dataclass(frozen=True, slots=True)
class Mention:
    """A company in a question: its words, the searches that lead to its code, and the forms of the
    code that a later call may give, the likeliest first."""

    text: str
    searches: tuple[GoldCall, ...]
    codes: tuple[str, ...]


class Directory:
    """Draws companies of a split and says how they are named."""

    def __init__(self, market: Market, num_wordings: int) -> None:
        self.market, self.num_wordings = market, num_wordings
        self._pools: dict[tuple[Split, MarketName, bool], Sequence[Company]] = {}
        self._taken = {name_key(name) for company in market.companies for name in (company.name_en, company.aliases[0])}

    def draw(self, split: Split, market: MarketName, reference: Reference, rng: random.Random) -> Company:
        """A company of the split that is listed on `market`, and on both as the reference needs."""
        match reference:
            case "both":
                is_dual = True
            case "no_cue":
                is_dual = False
            case "cue" | "indirect" | "two_names":
                is_dual = rng.random() < _SHARE_DUAL[market]
            case _:
                is_dual = rng.random() < 0.1
        return rng.choice(self._pool(split, market, is_dual=is_dual))

    def mention(
        self, company: Company, market: MarketName, question: Question, language: str, rng: random.Random
    ) -> Mention:
        listing = company.on(market)
        assert listing is not None, f"{company.company_id} is not listed on {market}"
        forms = accepted_codes(listing)
        if question.reference == "code":
            written = rng.choice(code_forms(listing))
            return Mention(written, (), tuple(dict.fromkeys((written, *forms))))
        name = self._name(company, language, rng)
        search = search_call(market, name, company)
        match question.reference:
            case "two_names":
                nickname = self._nickname(language, rng)
                both, searches = f"{name}({nickname})", [search]
                if rng.random() < _SHARE_UNKNOWN_FIRST:
                    both, searches = f"{nickname}({name})", [search_call(market, nickname), search]
                return Mention(self._cued(question, language, market, both, rng), tuple(searches), forms)
            case "no_cue":
                return Mention(name, (search,) if market == "a" else (search_call("a", name), search), forms)
            case "both":
                words = drawn(BOTH[language,].of(question.group, self.num_wordings), rng)
                return Mention(words.format(n=name), (search,), forms)
            case "cue" | "indirect":
                return Mention(self._cued(question, language, market, name, rng), (search,), forms)
        return Mention(name, (search,), forms)

    def _pool(self, split: Split, market: MarketName, *, is_dual: bool) -> Sequence[Company]:
        key = (split, market, is_dual)
        if key not in self._pools:
            of_split = self.market.companies_of(split)
            self._pools[key] = [
                company for company in of_split if company.on(market) is not None and company.is_dual_listed == is_dual
            ]
        return self._pools[key]

    def _cued(self, question: Question, language: str, market: MarketName, name: str, rng: random.Random) -> str:
        style = "indirect" if question.reference == "indirect" else "cue"
        return rng.choice(CUES[style, language, market].of(question.group, self.num_wordings)).format(n=name)

    def _name(self, company: Company, language: str, rng: random.Random) -> str:
        short_zh, long_en = company.aliases
        is_other_form = rng.random() < _SHARE_SHORT_NAME
        if language == "zh":
            return short_zh if is_other_form else company.name_zh
        return long_en if is_other_form else company.name_en

    def _nickname(self, language: str, rng: random.Random) -> str:
        """A name made like the others that no company has, and that no search finds one by."""
        while True:
            first, second = rng.sample(BRAND_WORDS, 2)
            if language == "zh" and first[0] + second[0] not in self._taken:
                nickname = first[0] + second[0] + rng.choice(INDUSTRIES)[0]
            elif language == "en" and name_key(first[1] + second[1]) not in self._taken:
                nickname = first[1] + second[1]
            else:
                continue
            if not any(self.market.find(nickname, market) for market in MARKETS):
                return nickname


def search_call(market: MarketName, written: str, company: Company | None = None) -> GoldCall:
    """The search for a name as written; every name of `company` is accepted."""
    others = (company.name_zh, company.name_en, *company.aliases) if company else ()
    names: Mapping[str, tuple[JsonValue, ...]] = {"name": tuple(dict.fromkeys((written, *others)))}
    return GoldCall(
        "search_stock" if market == "a" else MARKETS_AS_SIDES.twin("search_stock"), names, holds_answer=False
    )


def code_forms(listing: Listing) -> tuple[str, ...]:
    """The forms in which people write a code: 600519.SH, 600519, sh600519; 00700.HK, 0700.HK."""
    digits, _, exchange = listing.code.partition(".")
    if listing.market == "a":
        return (listing.code, digits, exchange.lower() + digits)
    short = tuple(f"{digits[cut:]}.HK" for cut in (1, 2) if digits.startswith("0" * cut))
    return (listing.code, digits, *short)


def accepted_codes(listing: Listing) -> tuple[str, ...]:
    """All forms that the tools take; letters' case is left to the comparison."""
    digits, _, exchange = listing.code.partition(".")
    bare = digits.lstrip("0") if listing.market == "hk" else digits
    others = [f"{exchange}{digits}", f"{exchange}.{digits}", bare, f"{bare}.{exchange}"]
    others += [f"{digits}.SS"] if exchange == "SH" else []
    return tuple(dict.fromkeys((*code_forms(listing), *others)))
