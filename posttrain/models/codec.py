"""Between messages and token ids, so that a training row and a rollout of the same episode are the
same tokens.

A rollout never renders a conversation again: it keeps the ids that the agent sampled and appends
the ids of what came between. A row is therefore composed in the same way, prompt + (assistant +
results)*, and not cut out of one rendering of the whole, in which many templates rewrite earlier
turns (Qwen3 removes their reasoning). The price: where a template does rewrite them, a row differs
from that template's own rendering of a finished chat.
"""

import functools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from posttrain.models.call_formats.format import Schemas, ToolCallFormat
from posttrain.models.parsing import parse_assistant
from posttrain.models.rendering import ChatRenderer
from posttrain.models.special_token_escape import BREAK
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message, ToolCall, in_order_of_calls

NONE, REASONING, CALL, TEXT = 0, 1, 2, 3
# the conversation, the tools, and the places of what the agent did not write itself
Conversation = tuple[Sequence[Message], Schemas] | tuple[Sequence[Message], Schemas, Collection[int]]
Segment = tuple[Literal["agent", "given"], str]

# kept: the episodes of a group hear the same from the same tools, and rendering that costs as much
# as a turn of a small model
_NUM_RESULTS = 4096


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One training example, three lists of one length T: ids, 1 in `mask` where the agent wrote the
    token, and what kind of token it is there (`category`: 0 not the agent's, 1 reasoning, 2 call, 3
    text; the end mark counts with what it ends)."""

    input_ids: list[int]
    mask: list[int]
    category: list[int]


class ChatCodec:
    """One tokenizer with its chat template. Raises ConfigurationError where the template has no
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
    def form(self) -> ToolCallFormat:
        """In which the agent writes calls."""
        return self._renderer.form

    def encode_prompt(self, messages: Sequence[Message], tools: Schemas) -> list[int]:
        """What the agent reads before its first message, up to and including the mark that says it
        is its turn."""
        return self._ids(self._renderer.prompt(messages, tools))

    def encode_assistant(self, message: Message) -> list[int]:
        """What the agent writes for `message`, stop token included."""
        return self._ids(self._renderer.assistant(message))

    def encode_results(self, messages: Sequence[Message], calls: Sequence[ToolCall] = ()) -> list[int]:
        """What stands between the stop token of one agent message, which made `calls`, and the
        first token of the next: results, in the order of the calls, or the user's words, and the
        turn mark."""
        heard = tuple(in_order_of_calls(messages, calls))
        return list(self._result_ids(heard, self._renderer.names_of(heard, calls)))

    def encode_row(self, messages: Sequence[Message], tools: Schemas) -> TokenRow:
        """The conversation up to its last assistant message. What stands behind that was never read
        by the agent and is left out."""
        return self.encode_rows([(messages, tools)])[0]

    def encode_rows(self, conversations: Iterable[Conversation]) -> list[TokenRow]:
        """As `encode_row`, for many: each distinct text is tokenised once, all in one batch. A
        third part of a conversation names the messages that are read and not learnt."""
        segments_N = [self._segments(*conversation) for conversation in conversations]
        texts = list(dict.fromkeys(text for segments in segments_N for _, text in segments))
        encoded = dict(zip(texts, self._encode(texts), strict=True))
        return [self._compose(segments, encoded) for segments in segments_N]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of all ids, markers shown."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def parse(self, ids: Sequence[int], tools: Schemas = ()) -> Message:
        """The message that an agent wrote who was offered `tools`; the ids may end with a stop
        token or, where it was cut off, not. Without tools, arguments of forms that put no quotes
        around texts are all texts."""
        end = next((index for index, token in enumerate(ids) if token in self.stop_ids), len(ids))
        return parse_assistant(self.decode(ids[:end]), self.form, thought=self._renderer.thought, tools=tools)

    def _encode_results(self, messages: tuple[Message, ...], names: tuple[str, ...]) -> list[int]:
        return self._ids(self._renderer.between(messages, names))

    def _refuse_other_messages(self) -> None:
        """What the template writes as a call or a thought must be what the parser reads as one."""
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

    def _segments(self, messages: Sequence[Message], tools: Schemas, unlearnt: Collection[int] = ()) -> list[Segment]:
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not turns:
            return [("given", self._renderer.prompt(messages, tools))]
        segments: list[Segment] = [("given", self._renderer.prompt(messages[: turns[0]], tools))]
        for turn, next_turn in zip(turns, [*turns[1:], None], strict=True):
            author: Literal["agent", "given"] = "given" if turn in unlearnt else "agent"
            segments.append((author, self._renderer.assistant(messages[turn])))
            if next_turn is not None:
                heard = in_order_of_calls(messages[turn + 1 : next_turn], messages[turn].tool_calls)
                names = self._renderer.names_of(heard, messages[turn].tool_calls)
                segments.append(("given", self._renderer.between(heard, names)))
        return segments

    def _ids(self, text: str) -> list[int]:
        return self._encode([text])[0][0]

    def _encode(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Ids and the span of characters of each, breaks not counted."""
        if not texts:
            return []
        pieces_N = [text.split(BREAK) for text in texts]
        encoded = self.tokenizer(
            [piece for pieces in pieces_N for piece in pieces],
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
        )
        found = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        return [_joined(pieces, found) for pieces in pieces_N]

    def _compose(
        self, segments: Sequence[Segment], encoded: Mapping[str, tuple[list[int], list[tuple[int, int]]]]
    ) -> TokenRow:
        row = TokenRow([], [], [])
        for author, text in segments:
            ids, spans = encoded[text]
            row.input_ids.extend(ids)
            row.mask.extend([int(author == "agent")] * len(ids))
            row.category.extend(
                self._categories(text.replace(BREAK, ""), spans) if author == "agent" else [NONE] * len(ids)
            )
        return row

    def _categories(self, text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
        """The category of each token of an assistant message, by where it begins."""
        thought = self._reasoning.match(text)
        said = thought.end() if thought else 0
        category_of_character = [REASONING] * said + [TEXT] * (len(text) - said)
        for found in self.form.calls.finditer(text[said:]):
            category_of_character[said + found.start() : said + found.end()] = [CALL] * (found.end() - found.start())
        categories = [category_of_character[start] for start, _ in spans]
        return [*categories[:-1], categories[-2] if len(categories) > 1 else TEXT]


def _joined(
    pieces: Sequence[str], encoded: Iterator[tuple[list[int], list[tuple[int, int]]]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Takes as many of `encoded` as there are pieces: two of lengths 3 and 2 have the spans of one
    text of length 5."""
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for piece in pieces:
        of_piece, spans_of_piece = next(encoded)
        ids += of_piece
        spans += [(begin + start, end + start) for begin, end in spans_of_piece]
        start += len(piece)
    return ids, spans
