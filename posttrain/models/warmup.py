"""Warm-up of a model from scratch: next-token training on scrambled messages, which teaches it to
copy before demonstrations teach it what to copy.

Copying appears in one jump some hundred steps into SFT and drags the binding of a value to its
field behind it. A row here is nothing else, and only its values are trained. A result and some of
its values again, in every second row in another order, teach the look-up by key, which digits need.
A list of values and the same again teaches to go on behind the last token copied, which names need.
A message and the calls that take something from it, a name from a question or a code from a result,
put both to use. Every digit, Han character and name that is copied is drawn anew: nothing about the
world can be learnt. The values over carets are trained:

    <|tool|>{"code":"73019.B","price":86.10,"left":85}<|assistant|>
    {"price":86.10}↵{"code":"73019.B"}<|end|>
              ^^^^^           ^^^^^^^^^^^^^^^^
    <|user|>PlumShip, 松鹤, GoldBell<|assistant|>
    {"name":"松鹤"}{"name":"GoldBell"}{"name":"PlumShip"}<|end|>
             ^^               ^^^^               ^^^^
    <|user|>Shop B, PlumShip: left?<|assistant|>
    <tool_call>{"name":"search_item","arguments":{"name":"PlumShip"}}</tool_call><|end|>
                                                          ^^^^^^^^
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from posttrain.models.chat_template import ASSISTANT, END, TOOL, USER
from posttrain.models.cpu_kernels import fast_products
from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import PrepareModelParams
from posttrain.models.parts import add_gradients, parts_beside
from posttrain.models.token_logprobs import IGNORED, pad_right
from posttrain.types import Message

MAX_FIELDS = 4  # of one result are asked for; the first rows show no more
ROW_KINDS = ("result", "result", "values", "calls")  # results are learnt last
MAX_VALUES = 4  # of one list
PART_SIZE = 8
GROWTH_FRAC = 0.4  # of the rows, over which results grow to all of their fields
DECAY_FRAC = 0.3  # of the steps, over which the rate falls at the end: the jump to copying wants the full rate
_SEPARATORS = (", ", "、", " or ", "和")
_PLAIN = {"code": "00000", "value": "0.00"}  # where the demonstrations have no flat results
Fields = dict[str, str]  # key -> the JSON text of its value
Row = tuple[list[int], list[int]]  # input ids and labels, the latter -100 where nothing is trained
Segments = list[tuple[str, bool]]  # a row's text, cut where training begins and ends


def warm_up(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    params: PrepareModelParams,
    *,
    on_step: Callable[[int, float], None],
) -> None:
    """Train `model` in place on `rows`, in their order, `warmup_batch_size` a step; the rate
    falls to 0 at the end. `on_step` gets step and loss. It takes a minute: no checkpoints."""
    optimizer = build_optimizer(model, "muon", params.lr)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    model.train()
    num_decay = max(1, round(DECAY_FRAC * params.warmup_steps))
    for step in range(params.warmup_steps):
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min(1.0, (params.warmup_steps - step) / num_decay)
        batch = sorted(
            rows[step * params.warmup_batch_size : (step + 1) * params.warmup_batch_size], key=lambda row: len(row[0])
        )
        num_trained = sum(label != IGNORED for _, labels in batch for label in labels)
        parts = [batch[start : start + PART_SIZE] for start in range(0, len(batch), PART_SIZE)]

        def loss_of(part: Sequence[Row], num_trained: int = num_trained) -> tuple[torch.Tensor, float]:
            ids_N_T = pad_right([ids for ids, _ in part], tokenizer.pad_token_id)
            labels_N_T = pad_right([labels for _, labels in part], IGNORED)
            targets_N_T = labels_N_T[:, 1:]
            is_trained = targets_N_T != IGNORED
            hidden_N_T_H = model.base_model(input_ids=ids_N_T, use_cache=False).last_hidden_state[:, :-1]
            logits_P_V = model.get_output_embeddings()(
                hidden_N_T_H[is_trained]
            )  # a fifth of the tokens: the head is a fifth of the work
            loss = cross_entropy(logits_P_V.float(), targets_N_T[is_trained], reduction="sum") / num_trained
            return loss, loss.item()

        with fast_products(model.device), parts_beside(model):
            step_loss = sum(add_gradients(model, loss_of, parts))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        on_step(step + 1, step_loss)
    model.eval()


@dataclass(frozen=True, slots=True)
class _Request:
    """A message and the (tool, argument, value) that calls behind it take from it, each value
    once."""

    marker: str
    content: str
    copies: tuple[tuple[str, str, str], ...]


def copy_rows(conversations: Iterable[Sequence[Message]], tokenizer: Any, *, count: int, seed: int) -> list[Row]:
    """`count` rows of scrambled messages; equal arguments give equal rows."""
    conversations = list(conversations)
    results = dict.fromkeys(
        message.content for messages in conversations for message in messages if message.role == "tool"
    )
    shapes = [fields for content in results if (fields := _scalar_fields(content))] or [_PLAIN]
    requests = [request for messages in conversations for request in _requests(messages)]
    draw = random.Random(f"{seed}/warmup")
    scramble = _Scrambler(results, draw)
    segments_N = []
    for place in range(count):
        match draw.choice(ROW_KINDS) if requests else "result":
            case "result":
                most_fields = MAX_FIELDS + round(place / (GROWTH_FRAC * count) * max(map(len, shapes)))
                segments_N.append(_result_again(scramble.fields(draw.choice(shapes), most_fields), draw))
            case "values":
                drawn = [scramble.request(draw.choice(requests)).copies[0] for _ in range(draw.randint(2, MAX_VALUES))]
                segments_N.append(_values_again([(argument, value) for _, argument, value in drawn], draw))
            case _:
                segments_N.append(_calls(scramble.request(draw.choice(requests))))
    texts = [text for segments in segments_N for text, _ in segments]
    ids = iter(tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"] if texts else [])
    return [_row([(next(ids), is_trained) for _, is_trained in segments]) for segments in segments_N]


def _scalar_fields(content: str) -> Fields:
    """Numbers and texts of a flat JSON object, as JSON text; empty for other contents."""
    result = _parsed(content)
    if not isinstance(result, dict):
        return {}
    scalars = {
        key: value
        for key, value in result.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    }
    return {key: json.dumps(value, ensure_ascii=False) for key, value in scalars.items()}


def _requests(messages: Sequence[Message]) -> list[_Request]:
    """Texts that calls of a conversation copy from the last message that has them."""
    copies: dict[Message, dict[str, tuple[str, str, str]]] = {}
    for place, message in enumerate(messages):
        sources = [source for source in messages[:place] if source.role in ("user", "tool")]
        for call in message.tool_calls:
            arguments = _parsed(call.arguments)
            for key, value in arguments.items() if isinstance(arguments, dict) else ():
                source = next(
                    (
                        source
                        for source in reversed(sources)
                        if isinstance(value, str) and value and value in source.content
                    ),
                    None,
                )
                if source is not None:
                    copies.setdefault(source, {}).setdefault(value, (call.name, key, value))
    return [
        _Request(USER if source.role == "user" else TOOL, source.content, tuple(found.values()))
        for source, found in copies.items()
    ]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _Scrambler:
    """Draws every digit, non-ASCII character and name anew, from those of the results."""

    def __init__(self, results: Iterable[str], draw: random.Random) -> None:
        self._draw = draw
        self._characters = sorted(
            {character for content in results for character in content if not character.isascii()}
        ) or ["一"]
        self._names: list[str] = sorted(
            {word for content in results for word in re.findall(r"[A-Z][a-z]+", content)}
        ) or ["Name"]

    def fields(self, shape: Fields, most: int) -> Fields:
        """`most` fields of a result, in their order. Numbers that began alike still do, as
        prices do: to go on behind a `92.` one must know which it was."""
        keys = self._draw.sample(list(shape), min(most, len(shape)))
        digits = str.maketrans(dict(zip("0123456789", self._draw.sample("0123456789", 10), strict=True)))
        return {
            key: self._text(value) if value.startswith('"') else value.translate(digits)
            for key, value in shape.items()
            if key in keys
        }

    def request(self, request: _Request) -> _Request:
        others = {value: self._text(value) for _, _, value in request.copies}
        longest_first = sorted(others, key=len, reverse=True)
        content = re.sub("|".join(map(re.escape, longest_first)), lambda found: others[found[0]], request.content)
        return _Request(
            request.marker, content, tuple((tool, argument, others[value]) for tool, argument, value in request.copies)
        )

    def _text(self, text: str) -> str:
        return re.sub(r"[0-9]|[^\x00-\x7f]|[A-Z][a-z]+", self._another, text)

    def _another(self, found: re.Match[str]) -> str:
        if found[0].isdigit():
            return self._draw.choice("0123456789")
        return self._draw.choice(self._names if found[0].isascii() else self._characters)


def _result_again(fields: Fields, draw: random.Random) -> Segments:
    """A result and some of its fields again, each behind a brace as demonstrations quote it, not
    a comma: that these two tokens are one key is half of what is learnt here."""
    asked = draw.sample(list(fields), min(MAX_FIELDS, len(fields)))
    if draw.random() < 0.5:
        asked = [key for key in fields if key in asked]
    segments, before = [(f"{TOOL}{_object(fields)}{ASSISTANT}", False)], ""
    for key in asked:
        quote = '"' if fields[key].startswith('"') else ""
        segments += [(f'{before}{{"{key}":{quote}', False), (fields[key].removeprefix('"').removesuffix('"'), True)]
        before = f"{quote}}}\n"
    return [*segments, (before.removesuffix("\n") + END, True)]


def _values_again(values: Sequence[tuple[str, str]], draw: random.Random) -> Segments:
    """A list of values and the same again, in every second row in another order, where the first
    character or word of each cannot be known."""
    is_in_order = draw.random() < 0.5
    segments, before = [(USER + draw.choice(_SEPARATORS).join(value for _, value in values) + ASSISTANT, False)], ""
    for key, value in values if is_in_order else draw.sample(values, len(values)):
        first = re.match(r"[A-Z][a-z]+|.", value)
        assert first is not None, "a value that a call copies has a character"
        segments += [(f'{before}{{"{key}":"', False), (first[0], is_in_order), (value.removeprefix(first[0]), True)]
        before = '"}'
    return [*segments, (before + END, False)]


def _calls(request: _Request) -> Segments:
    segments, before = [(f"{request.marker}{request.content}{ASSISTANT}", False)], ""
    for tool, argument, value in request.copies:
        segments += [(f'{before}<tool_call>{{"name":"{tool}","arguments":{{"{argument}":"', False), (value, True)]
        before = '"}}</tool_call>'
    return [*segments, (before + END, False)]


def _object(fields: Fields) -> str:
    return "{" + ",".join(f'"{key}":{value}' for key, value in fields.items()) + "}"


def _row(segments: Sequence[tuple[list[int], bool]]) -> Row:
    ids = [token for tokens, _ in segments for token in tokens]
    return ids, [token if is_trained else IGNORED for tokens, is_trained in segments for token in tokens]
