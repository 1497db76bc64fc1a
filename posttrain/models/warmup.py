"""Does a model copy before it learns what to copy? Next-token training on scrambled tool results, before the first demonstration.

Copying appears in one jump some hundred steps into SFT and drags the binding of a value to its field behind it. A row here is nothing else: a result
with random values, and the same once more, in every second row in another order; only the values are trained. Equal order is learnt first and carries
the look-up by key: 120 steps of both reach a loss of 0.5, of other orders alone 0.8 to 1.4. The keys and the shapes of values are those of the
demonstrations' tool results; every digit, Han character and name in them is drawn anew, so that nothing about the world can be learnt.

    <|tool|>{"code":"73019.HK","price":86.10}<|assistant|>{"price":86.10,"code":"73019.HK"}<|end|>
                                                                   ^^^^^         ^^^^^^^^^^^^^^^^^
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from posttrain.models.chat_template import ASSISTANT, END, TOOL
from posttrain.models.optimizers import build_optimizer
from posttrain.params import PrepareModelParams
from posttrain.types import Message

MAX_FIELDS = 4  # of one result: against 8, the same loss in two thirds of the time
_PLAIN = {"code": "00000", "value": "0.00"}  # where the demonstrations have no flat results
_IGNORED = -100
Fields = dict[str, str]  # key -> the JSON text of its value
Row = tuple[list[int], list[int]]  # input ids and labels, the latter -100 where nothing is trained


def warm_up(model: Any, tokenizer: Any, rows: Sequence[Row], params: PrepareModelParams, *, on_step: Callable[[int, float], None]) -> None:
    """Train `model` in place on `rows`, in their order, `warmup_batch_size` a step; the rate falls linearly to 0. `on_step` gets step and loss.

    Left out: checkpoints (it takes seconds), evaluation, gradient accumulation, mixed precision.
    """
    optimizer = build_optimizer(model, "muon", params.lr)
    model.train()
    for step in range(params.warmup_steps):
        for group in optimizer.param_groups:
            group["lr"] = params.lr * (1 - step / params.warmup_steps)
        batch = rows[step * params.warmup_batch_size : (step + 1) * params.warmup_batch_size]
        ids_N_T, labels_N_T = _pad(batch, tokenizer.pad_token_id)
        logits_N_T_V = model(input_ids=ids_N_T, attention_mask=(ids_N_T != tokenizer.pad_token_id).long()).logits
        loss = cross_entropy(logits_N_T_V[:, :-1].flatten(0, 1).float(), labels_N_T[:, 1:].flatten(), ignore_index=_IGNORED)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        on_step(step + 1, loss.item())
    model.eval()


def copy_rows(conversations: Iterable[Sequence[Message]], tokenizer: Any, *, count: int, seed: int) -> list[Row]:
    """`count` rows of scrambled results of these conversations; equal arguments give equal rows."""
    results = dict.fromkeys(message.content for messages in conversations for message in messages if message.role == "tool")
    shapes = [fields for content in results if (fields := _scalar_fields(content))] or [_PLAIN]
    characters = sorted({character for content in results for character in content if not character.isascii()}) or ["一"]
    names = sorted({word for content in results for word in re.findall(r"[A-Z][a-z]+", content)}) or ["Name"]
    draw = random.Random(f"{seed}/warmup")
    segments_N = [_segments(_scrambled(draw.choice(shapes), draw, characters, names), draw) for _ in range(count)]
    texts = [text for segments in segments_N for text, _ in segments]
    ids = iter(tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"] if texts else [])
    return [_row([(next(ids), is_trained) for _, is_trained in segments]) for segments in segments_N]


def _scalar_fields(content: str) -> Fields:
    """The numbers and texts of a flat JSON object, as JSON text; empty where the content is something else."""
    try:
        result = json.loads(content)
    except ValueError:
        return {}
    if not isinstance(result, dict):
        return {}
    scalars = {key: value for key, value in result.items() if isinstance(value, str | int | float) and not isinstance(value, bool)}
    return {key: json.dumps(value, ensure_ascii=False) for key, value in scalars.items()}


def _scrambled(shape: Fields, draw: random.Random, characters: Sequence[str], names: Sequence[str]) -> Fields:
    """Some of the fields, in their order, with every digit, non-ASCII character and name drawn anew."""
    keys = draw.sample(list(shape), min(MAX_FIELDS, len(shape)))

    def another(found: re.Match[str]) -> str:
        if found[0].isdigit():
            return draw.choice("0123456789")
        return draw.choice(names if found[0].isascii() else characters)

    return {key: re.sub(r"[0-9]|[^\x00-\x7f]|[A-Z][a-z]+", another, value) for key, value in shape.items() if key in keys}


def _segments(fields: Fields, draw: random.Random) -> list[tuple[str, bool]]:
    """The row's text cut where training begins and ends."""
    asked = draw.sample(list(fields), len(fields)) if draw.random() < 0.5 else list(fields)
    segments = [(f"{TOOL}{_object(fields)}{ASSISTANT}", False)]
    before = "{"
    for key in asked:
        quote = '"' if fields[key].startswith('"') else ""
        segments += [(f'{before}"{key}":{quote}', False), (fields[key].removeprefix('"').removesuffix('"'), True)]
        before = f"{quote},"
    return [*segments, (before.removesuffix(",") + "}" + END, True)]


def _object(fields: Fields) -> str:
    return "{" + ",".join(f'"{key}":{value}' for key, value in fields.items()) + "}"


def _row(segments: Sequence[tuple[list[int], bool]]) -> Row:
    ids = [token for tokens, _ in segments for token in tokens]
    return ids, [token if is_trained else _IGNORED for tokens, is_trained in segments for token in tokens]


def _pad(rows: Sequence[Row], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels, each (N, T), filled up on the right."""
    longest = max(len(ids) for ids, _ in rows)
    ids_N_T = torch.tensor([ids + [pad_id] * (longest - len(ids)) for ids, _ in rows])
    labels_N_T = torch.tensor([labels + [_IGNORED] * (longest - len(labels)) for _, labels in rows])
    return ids_N_T, labels_N_T
