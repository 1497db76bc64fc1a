"""The wording of questions, read from `wordings.yaml`.

Sentences are short and share their frames on purpose: a model from scratch learns a few hundred
words, and what is tested is whether it picks the market and the tool, not whether it parses prose.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from posttrain.runtime.plain_yaml import read_yaml
from posttrain.types import Split
from posttrain.worlds.stocks.codes import MarketName

Group: TypeAlias = Literal["plain", "dev_paraphrase", "paraphrase", "chatty", "misspelt", "mixed"]
GROUPS: dict[Split, tuple[Group, ...]] = {  # of other splits: plain
    "dev_paraphrase": ("dev_paraphrase",),
    "test_paraphrase": ("paraphrase",),
    "test_noisy": ("chatty", "misspelt", "mixed"),  # plain wordings as people type them (noise.py)
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
_CUES, _OPENINGS, _CLOSINGS = (_wordings(_BANK[part]) for part in ("cues", "openings", "closings"))
_ENDING_SPLITS: tuple[Split, ...] = ("sft", "rl", "dev", "test")


def group_of(split: Split) -> Group:
    """The group that a split's words are of; of `test_noisy`, whose words are plain, `plain`."""
    return GROUPS[split][0] if split in GROUPS and split != "test_noisy" else "plain"


def drawn(texts: Sequence[str], rng: random.Random) -> str:
    """One of the texts; where there is one only, without a draw."""
    return rng.choice(texts) if len(texts) > 1 else texts[0]


def cues(style: str, language: str, market: MarketName) -> Wordings:
    """How a market is said: by its name (`cue`), or its exchange or currency (`indirect`)."""
    return _CUES[style, language, market]


def endings(split: Split, language: str) -> list[str]:
    """The texts that end a conversation without naming a company, no two splits sharing one: each
    opening with each closing, dealt out to the splits by their place."""
    group = group_of(split)
    parts: list[Sequence[str]] = [part[language,].of(group, 1) for part in (_OPENINGS, _CLOSINGS)]
    dealt = "test" if split == "test_noisy" else split
    comma = "," if language == "zh" else ", "
    return [
        f"{opening}{comma}{closing}"
        for row, opening in enumerate(parts[0])
        for column, closing in enumerate(parts[1])
        if group != "plain" or _ENDING_SPLITS[(row + column) % len(_ENDING_SPLITS)] == dealt
    ]
