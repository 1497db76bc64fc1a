"""Reads a `params.yaml` as flat knobs, `train_sft.lr: 0.002`, whatever commit and code it is of."""

from collections.abc import Mapping
from typing import Any

from posttrain.runtime.plain_yaml import read_plain

Knobs = Mapping[str, Any]  # by their place

SEED = "seed"
ABSENT = "—"  # of a knob that the other side does not have


def parse_knobs(content: bytes) -> dict[str, Any]:
    """Raises ValueError where it holds none."""
    tree = read_plain(content)
    if not isinstance(tree, dict):
        raise ValueError("it is no mapping")
    return flat_knobs(tree)


def flat_knobs(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of nested sections; an empty section is a leaf."""
    return dict(_leaves(tree, ""))


def setting_of(knobs: Knobs) -> dict[str, Any]:
    """Without the seed and what only the report reads: runs of equal rest are one setting."""
    return {name: value for name, value in knobs.items() if name != SEED and not name.startswith("report.")}


def knobs_that_differ(before: Knobs, after: Knobs) -> dict[str, tuple[Any, Any]]:
    """(before, after) by place, in the order of their names, but for the seed."""
    pairs = {name: (before.get(name, ABSENT), after.get(name, ABSENT)) for name in sorted({*before, *after} - {SEED})}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _leaves(node: Any, place: str) -> list[tuple[str, Any]]:
    if not isinstance(node, dict) or not node:
        return [(place, node)]
    return [leaf for key, child in node.items() for leaf in _leaves(child, f"{place}.{key}" if place else str(key))]
