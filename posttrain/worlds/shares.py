"""Deals what a world has (people, goods, numbers) out to splits: none knows what another has."""

from collections.abc import Sequence
from typing import TypeVar

from posttrain.types import Split

T = TypeVar("T")
_OWNERS = ("sft", "rl", "dev", "test")


def share_of(split: Split, things: Sequence[T]) -> Sequence[T]:
    """Every fourth of the things. Other phrasings of a split have its share: of 0 … 9 `dev` and
    `dev_paraphrase` get 2 and 6."""
    return things[_OWNERS.index(split.partition("_")[0]) :: len(_OWNERS)]
