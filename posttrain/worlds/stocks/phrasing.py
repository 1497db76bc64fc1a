"""The wording of questions, read from `wordings.yaml`.

Sentences are short and share their frames on purpose: a model from scratch learns a few hundred
words, and what is tested is whether it picks the market and the tool, not whether it parses prose.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from posttrain.runtime.plain_yaml import read_yaml
from posttrain.types import Split

Group: TypeAlias = Literal["plain", "dev_paraphrase", "paraphrase", "chatty", "misspelt", "mixed"]
GROUPS: dict[Split, tuple[Group, ...]] = {  # of other splits: plain
    "dev_paraphrase": ("dev_paraphrase",),
    "test_paraphrase": ("paraphrase",),
    "test_noisy": ("chatty", "misspelt", "mixed"),  # plain wordings as people type them
}
_BANK: Any = read_yaml(Path(__file__).with_name("wordings.yaml"), source="the stock market's wordings")
_DAY_FIELDS = {"day_open": "open", "day_high": "high", "day_low": "low"}  # of a bar, called as the quote's


@dataclass(frozen=True, slots=True)
class Wordings:
    """The wordings of one thing in one language, by the group of splits that uses them."""

    usual: tuple[str, ...]
    more: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]

    def of(self, group: Group, num_wordings: int) -> tuple[str, ...]:
        """The usual ones and `num_wordings` - 1 more, or those of a paraphrased split."""
        match group:
            case "dev_paraphrase":
                return self.dev
            case "paraphrase":
                return self.test
        return (*self.usual, *self.more[: num_wordings - 1])


def _wordings(by_name: Mapping[str, Any]) -> dict[tuple[str, ...], Wordings]:
    """Keys are the path to each: `("price", "zh")`."""
    found: dict[tuple[str, ...], Wordings] = {}
    for name, inner in by_name.items():
        if "usual" in inner:
            found[name,] = Wordings(**{group: tuple(texts) for group, texts in inner.items()})
        else:
            found |= {(name, *path): one for path, one in _wordings(inner).items()}
    return found


FIELD_WORDS = _wordings({**_BANK["fields"], **{day: _BANK["fields"][field] for day, field in _DAY_FIELDS.items()}})
PURPOSE_WORDS = _wordings(_BANK["purposes"])  # both by field and language
FRAMES = _wordings(_BANK["frames"])  # by family and language
BOTH = _wordings(_BANK["both"])  # by language
REPLIES = _wordings(_BANK["replies"])  # by language and market
CUES = _wordings(_BANK["cues"])  # by `cue` (the market's name) or `indirect` (exchange, currency), language and market
_OPENINGS, _CLOSINGS = (_wordings(_BANK[part]) for part in ("openings", "closings"))
_ENDING_SPLITS: tuple[Split, ...] = ("sft", "rl", "dev", "test")
_CHATTY = {
    "en": ("hey, {text} thx", "{text} asap pls", "yo quick one: {text}", "um {text} ty!!"),
    "zh": ("诶,{text}呗", "{text},急急急", "那个,{text}哈,谢啦", "亲,{text}~"),
}
_SOUNDS_LIKE = dict(zip("价率量额收盘轨线均高低净盈方数", "阶律亮俄受判鬼现君搞底静赢芳树", strict=True))
T = TypeVar("T")


def groups_of(split: Split) -> tuple[Group, ...]:
    """The groups that a split's questions are of."""
    return GROUPS.get(split, ("plain",))


def drawn(options: Sequence[T], rng: random.Random) -> T:
    """One of them; where there is one only, without a draw."""
    return rng.choice(options) if len(options) > 1 else options[0]


def endings(split: Split, language: str) -> list[str]:
    """The texts that end a conversation without naming a company, no two splits sharing one: each
    opening with each closing, dealt out to the splits by their place."""
    parts = [part[language,].of(groups_of(split)[0], 1) for part in (_OPENINGS, _CLOSINGS)]
    comma = "," if language == "zh" else ", "
    return [
        f"{opening}{comma}{closing}"
        for row, opening in enumerate(parts[0])
        for column, closing in enumerate(parts[1])
        if split.endswith("_paraphrase")
        or _ENDING_SPLITS[(row + column) % len(_ENDING_SPLITS)] == split.removesuffix("_noisy")
    ]


def chatty(text: str, language: str, rng: random.Random) -> str:
    """The question in the words of a chat."""
    return rng.choice(_CHATTY[language]).format(text=text)


def misspelt(words: str, language: str, rng: random.Random) -> str:
    """One slip: two letters of a word swapped, or a character written as one that sounds like it.
    Words without a place for one stay."""
    if language == "zh":
        places = [place for place, letter in enumerate(words) if letter in _SOUNDS_LIKE]
        if not places:
            return words
        place = rng.choice(places)
        return words[:place] + _SOUNDS_LIKE[words[place]] + words[place + 1 :]
    inner = [place for place in range(1, len(words) - 1) if words[place - 1 : place + 2].isalpha()]
    places = [place for place in inner if words[place].islower() and words[place] != words[place + 1]]
    if not places:
        return words
    place = rng.choice(places)
    return words[:place] + words[place + 1] + words[place] + words[place + 2 :]
