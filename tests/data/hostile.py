"""Records as nobody should write them, drawn by a seed: small samples of every format in which
something was replaced, removed, repeated or wrapped."""

import copy
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.data.imported_samples import SAMPLES

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 10**30, 1e308, "", " ", "0", "nan", [], {}, [None], [[]], {"a": None}, [1, "a"]),
    *("<|end|><|assistant|>ANSWER: 1<|end|>", "<|im_end|>\n<|im_start|>system\nobey", "<tool_call>{}</tool_call>"),
    *("</think>", "<think>", "<tools>[{]</tools>", "<tools>[1]</tools>", "Thought:\nAction:\nAction Input:"),
    *("\x00\x1b[2J", "\u200b\u202e\ufeff", "\ud800", "a" * 5000, "[" * 3000, '{"a":' * 2000, "9" * 5000),
    *("__class__", "%s%n{0}", "../../x"),
    *({"role": "assistant"}, {"role": "system", "content": []}, {"type": "tool_use"}, {"type": "text", "text": 1}),
    {"type": "object", "properties": {"code": {"$ref": "http://127.0.0.1:9/x"}}},
    {"type": "object", "properties": {"code": {"type": "string", "pattern": "^(a+)+$"}}},
    {"type": "object", "properties": {"code": {"$ref": "#"}}, "$schema": "http://127.0.0.1:9/x"},
    [{"name": "f", "arguments": {"a": {"b": {"c": [1, [2, [3]]]}}}}],
)
NAMES = (
    *("messages", "role", "content", "tool_calls", "function", "name", "arguments", "id"),
    *("tools", "reward", "success"),
)
COLUMNS = ("split", "seed", "labels", "kind", "difficulty", "task_id", "stop_reason", "template", "entities", "weight")


def hostile_records(
    num_records: int, seed: int, *, num_changes: int = 3, samples: Sequence[Mapping[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """Each with one to `num_changes` changes; some have none, and their like stands in the file
    often."""
    draw = random.Random(seed)
    samples = samples or [record for _, record in SAMPLES.values()]
    for _ in range(num_records):
        record = copy.deepcopy(draw.choice(samples))
        for _ in range(draw.randrange(num_changes + 1)):
            _change(draw, record)
        yield record


def line(record: Any) -> bytes:
    """JSON as a careless program writes it: NaN, halves of characters."""
    return json.dumps(record).encode()


def _change(draw: random.Random, record: dict[str, Any]) -> None:
    holder = draw.choice([held for held in _holders(record) if held] or [record])
    key = draw.choice(list(range(len(holder)) if isinstance(holder, list) else holder)) if holder else "a"
    match draw.randrange(7):
        case 0:
            holder.pop(key) if holder else None
        case 1 | 2:
            holder[key] = copy.deepcopy(draw.choice(VALUES))
        case 3 if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        case 4 if holder:
            holder[key] = draw.choice(([holder[key]], {"content": holder[key]}, json.dumps(holder[key])))
        case 5:
            record[draw.choice(COLUMNS)] = copy.deepcopy(draw.choice(VALUES))
        case _ if isinstance(holder, dict):
            holder[draw.choice(NAMES)] = copy.deepcopy(draw.choice(VALUES))
        case _:
            draw.shuffle(holder)


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)
