"""Encodes messages as token ids and parses them back, with equal tokens in training and rollouts.

A rollout never renders a conversation again: it keeps the sampled ids and appends those of the
results. A training row is composed likewise, prompt + (assistant + results)*: cut out of one
rendering it would differ, as many templates rewrite earlier turns (Qwen3 drops their reasoning).
"""

import functools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from posttrain.models.call_formats.format import Schemas, ToolCallFormat, replace_lone_surrogates
from posttrain.models.call_formats.json_formats import Hermes
from posttrain.models.chat_template import THOUGHT
from posttrain.models.rendering import ChatRenderer
from posttrain.models.special_token_escape import BREAK
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message, ToolCall, in_order_of_calls

NONE, REASONING, CALL, TEXT, OBSERVED = range(5)
# messages, tools, and the positions of assistant messages that get no loss
Conversation = tuple[Sequence[Message], Schemas] | tuple[Sequence[Message], Schemas, Collection[int]]
_HERMES: ToolCallFormat = Hermes()
Author = Literal["agent", "given", "world"]
Segment = tuple[Author, str]

# Encoded results are cached: the episodes of a group get the same results of the same tools, and
# rendering them costs as much as a turn of a small model.
_NUM_RESULTS = 4096


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One training example, lists of length T: token ids, `mask` (1 where the agent wrote), and
    `category` (0 prompt or an untrained message, 1 reasoning, 2 call, 3 text, 4 what the world
    answered: results of tools, or a user; a stop token has its predecessor's)."""

    input_ids: list[int]
    mask: list[int]
    category: list[int]


class ChatCodec:
    """Codec of a tokenizer with its chat template. Raises ConfigurationError where that has no
    chat with tools that a rollout could continue."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._renderer = ChatRenderer(tokenizer)
        start, end = map(re.escape, self._renderer.thought)
        self._reasoning = re.compile(rf"\s*{start}.*?(?:{end}|\Z)\s*", re.DOTALL)
        stop_ids = [encoded[0][0] for encoded in self._encode(self._renderer.stop_texts)]
        self.stop_ids: frozenset[int] = frozenset(
            stop_ids if tokenizer.eos_token_id is None else [*stop_ids, tokenizer.eos_token_id]
        )
        self.pad_id: int = stop_ids[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._result_ids = functools.lru_cache(_NUM_RESULTS)(self._encode_results)
        self._refuse_other_messages()

    @property
    def call_format(self) -> ToolCallFormat:
        return self._renderer.call_format

    def encode_prompt(self, messages: Sequence[Message], tools: Schemas) -> list[int]:
        """Ids before the agent's first message, generation prompt included."""
        return self._ids(self._renderer.prompt(messages, tools))

    def encode_assistant(self, message: Message) -> list[int]:
        """Ids that the agent writes for `message`, stop token included."""
        return self._ids(self._renderer.assistant(message))

    def encode_results(self, messages: Sequence[Message], calls: Sequence[ToolCall] = ()) -> list[int]:
        """Ids between an agent's message, which made `calls`, and its next: results in the order
        of the calls, or the user's text, and the generation prompt."""
        results = tuple(in_order_of_calls(messages, calls))
        return list(self._result_ids(results, self._renderer.names_of(results, calls)))

    def encode_row(self, messages: Sequence[Message], tools: Schemas) -> TokenRow:
        """The row of a conversation up to its last assistant message."""
        return self.encode_rows([(messages, tools)])[0]

    def encode_rows(self, conversations: Iterable[Conversation]) -> list[TokenRow]:
        """Rows of many conversations, all distinct texts tokenised in one batch."""
        segments_N = [self._segments(*conversation) for conversation in conversations]
        texts = list(dict.fromkeys(text for segments in segments_N for _, text in segments))
        encoded = dict(zip(texts, self._encode(texts), strict=True))
        return [self._compose(segments, encoded) for segments in segments_N]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def parse(self, ids: Sequence[int], tools: Schemas = ()) -> Message:
        """Parse an agent's message up to its stop token; `tools` were offered."""
        end = next((index for index, token in enumerate(ids) if token in self.stop_ids), len(ids))
        return parse_assistant(self.decode(ids[:end]), self.call_format, thought=self._renderer.thought, tools=tools)

    def _encode_results(self, messages: tuple[Message, ...], names: tuple[str, ...]) -> list[int]:
        return self._ids(self._renderer.between(messages, names))

    def _refuse_other_messages(self) -> None:
        """Probe that calls and reasoning are read back as written."""
        call = ToolCall("call_0", "f", json.dumps({"a": "b"}))
        parsed = self.parse(self.encode_assistant(Message("assistant", "", None, (call,)))).tool_calls
        if [(found.name, found.arguments.replace(" ", "")) for found in parsed] != [
            (call.name, call.arguments.replace(" ", ""))
        ]:
            raise self._read_otherwise("calls")
        thought = Message("assistant", "c", "r")
        try:
            ids = self.encode_assistant(thought)
        except ConfigurationError:
            return  # a template whose agent does not think: refused where a demonstration does
        if self.parse(ids) != thought:
            raise self._read_otherwise("thoughts")

    def _read_otherwise(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"the chat template of {self.tokenizer.name_or_path!r} writes {what} that are read back otherwise: all "
            f"{what} of this model would be lost. Choose another model, or one of our templates as model.chat_template"
        )

    def _segments(self, messages: Sequence[Message], tools: Schemas, untrained: Collection[int] = ()) -> list[Segment]:
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not turns:
            return [("given", self._renderer.prompt(messages, tools))]
        segments: list[Segment] = [("given", self._renderer.prompt(messages[: turns[0]], tools))]
        for turn, next_turn in zip(turns, [*turns[1:], None], strict=True):
            author: Author = "given" if turn in untrained else "agent"
            segments.append((author, self._renderer.assistant(messages[turn])))
            if next_turn is not None:
                results = in_order_of_calls(messages[turn + 1 : next_turn], messages[turn].tool_calls)
                names = self._renderer.names_of(results, messages[turn].tool_calls)
                segments.append(("world", self._renderer.between(results, names)))
        return segments

    def _ids(self, text: str) -> list[int]:
        return self._encode([text])[0][0]

    def _encode(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Ids of each text, and the span of characters of each id, BREAKs not counted."""
        if not texts:
            return []
        pieces_N = [text.split(BREAK) for text in texts]
        options = {"add_special_tokens": False, "return_offsets_mapping": True, "return_attention_mask": False}
        encoded = self.tokenizer([piece for pieces in pieces_N for piece in pieces], **options)
        found = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        return [_join_pieces(pieces, found) for pieces in pieces_N]

    def _compose(
        self, segments: Sequence[Segment], encoded: Mapping[str, tuple[list[int], list[tuple[int, int]]]]
    ) -> TokenRow:
        row = TokenRow([], [], [])
        for author, text in segments:
            ids, spans = encoded[text]
            row.input_ids.extend(ids)
            row.mask.extend([int(author == "agent")] * len(ids))
            if author == "agent":
                row.category.extend(self._categories(text.replace(BREAK, ""), spans))
            else:
                row.category.extend([OBSERVED if author == "world" else NONE] * len(ids))
        return row

    def _categories(self, text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
        """Category of each token of an agent's message, by its first character."""
        reasoning = self._reasoning.match(text)
        start = reasoning.end() if reasoning else 0
        category_of_character = [REASONING] * start + [TEXT] * (len(text) - start)
        for found in self.call_format.calls.finditer(text[start:]):
            category_of_character[start + found.start() : start + found.end()] = [CALL] * len(found[0])
        categories = [category_of_character[begin] for begin, _ in spans]
        return [*categories[:-1], categories[-2] if len(categories) > 1 else TEXT]


def parse_assistant(
    text: str, call_format: ToolCallFormat = _HERMES, *, thought: tuple[str, str] = THOUGHT, tools: Schemas = ()
) -> Message:
    """Parse an agent's message (stop token removed): reasoning between the `thought` markers, then
    content and calls `call_0`, `call_1`, …. Never raises.

    A call that cannot be parsed becomes a ToolCall whose arguments are its text, and fails in
    `Tool.call`, where the world answers and the rewards count it. Empty reasoning is None;
    reasoning that never ends leaves no content and no calls. Texts around calls are the content, a
    line each.

        >>> call = '{"name":"get_price","arguments":{"code":"4711"}}'
        >>> parse_assistant(f"<think>B</think><tool_call>{call}</tool_call>").tool_calls
        (ToolCall(id='call_0', name='get_price', arguments='{"code":"4711"}'),)
    """
    reasoning, rest = _split_reasoning(replace_lone_surrogates(text), thought, call_format)
    content, raw_calls = call_format.read(rest, tools)
    calls = tuple(ToolCall(f"call_{index}", *call) for index, call in enumerate(raw_calls))
    return Message("assistant", content, reasoning.strip() or None, calls)


def _split_reasoning(text: str, thought: tuple[str, str], call_format: ToolCallFormat) -> tuple[str, str]:
    """Reasoning and the rest; some templates write the opening marker into the prompt."""
    start, end = thought
    before, marker, after = text.partition(end)
    is_opened = before.lstrip().startswith(start)
    if not marker:
        return (before.lstrip().removeprefix(start), "") if is_opened else ("", text)
    if not is_opened and (start in before or any(one in before for one in call_format.markers)):
        return "", text  # a stray marker in content or in a call
    return before.lstrip().removeprefix(start), after


def _join_pieces(
    pieces: Sequence[str], encoded: Iterator[tuple[list[int], list[tuple[int, int]]]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Join the encodings of a text's pieces: spans go on where the last piece ended."""
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for piece in pieces:
        piece_ids, piece_spans = next(encoded)
        ids += piece_ids
        spans += [(begin + start, end + start) for begin, end in piece_spans]
        start += len(piece)
    return ids, spans
