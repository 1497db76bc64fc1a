"""Scripts of the expert: the gold calls of each turn, a message each, and a short sentence behind
them; or the same with flaws that agents show in these sets.

A flaw shows where the entry gives the occasion: `early_call` makes the next turn's calls already
in a turn that has no use for any; `skipped_call` leaves out the last call of a turn,
`repeated_call` makes one twice, `malformed_json` writes one cut off at first.
"""

import json
import random
from collections.abc import Collection, Sequence
from typing import Literal, get_args

from posttrain.types import Message, ToolCall
from posttrain.worlds.bfcl import package
from posttrain.worlds.bfcl.entries import Call, Entry
from posttrain.worlds.bfcl.params import BfclFlawRates
from posttrain.worlds.scripts import Script, raw_call, say

Flaw = Literal["skipped_call", "early_call", "repeated_call", "malformed_json"]


def draw_flaws(entry: Entry, rates: BfclFlawRates, rng: random.Random) -> frozenset[Flaw]:
    drawn = {flaw for flaw in get_args(Flaw) if rng.random() < getattr(rates, flaw)}
    return frozenset(drawn if _early_turns(entry) else drawn - {"early_call"})


def expert_script(entry: Entry, flaws: Collection[Flaw], rng: random.Random, *, is_reasoning: bool) -> Script:
    turns = [list(calls) for calls in entry.gold]
    with_calls = [turn for turn, calls in enumerate(turns) if calls]
    cut_off = rng.choice(with_calls) if "malformed_json" in flaws else None
    if "early_call" in flaws:
        turn = rng.choice(_early_turns(entry))
        turns[turn] = list(turns[turn + 1])
    if "repeated_call" in flaws:
        calls = turns[rng.choice(with_calls)]
        calls.append(rng.choice(calls))
    if "skipped_call" in flaws:
        turns[rng.choice(with_calls)].pop()
    for turn, calls in enumerate(turns):
        reasoning = f"Next: {', '.join(call.name for call in calls) or 'nothing to call'}." if is_reasoning else None
        if turn == cut_off and calls:
            yield raw_call(calls[0].name, _json(calls[0])[:-1], reasoning=reasoning)
        for step in in_steps(calls):
            made = (ToolCall(f"call_{place}", call.name, _json(call)) for place, call in enumerate(step, start=1))
            yield Message("assistant", reasoning_content=reasoning, tool_calls=tuple(made))
            reasoning = None
        yield say("Done." if calls else "I cannot do that: a function or a detail is missing.", reasoning=reasoning)


def in_steps(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls of a turn, one a step; several where one turn may not have as many steps."""
    size = -(-len(calls) // package.max_steps()) or 1
    return [list(calls[start : start + size]) for start in range(0, len(calls), size)]


def _early_turns(entry: Entry) -> list[int]:
    gold = entry.gold_texts
    return [turn for turn in range(len(gold) - 1) if not gold[turn] and gold[turn + 1]]


def _json(call: Call) -> str:
    return json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
