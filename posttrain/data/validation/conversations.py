"""Checks of whole conversations: exact duplicates, which teach nothing new and weigh twice, and a
model's special tokens in what the agent writes, which would teach it to end a turn, or to begin
another role's, in the middle of a text.

Two conversations are equal when roles, texts, reasoning and calls are; ids are left out, because a
copy often gets new ones. Only 16 bytes of BLAKE2b are kept of each: a collision is expected among
2⁶⁴ different conversations. The base model is not known yet, so the tokens of all families of chat
templates are looked for. Users and tools may write them: there they are tokenised as ordinary text
(`posttrain/models/special_token_escape.py`).
"""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from posttrain.data.validation.flat import bool_array

_FIELD, _CALL, _MESSAGE = "\x1f", "\x1e", "\x1d"  # ASCII's unit, record and group separators, which no text has
_DIGEST_BYTES = 16
# <|im_end|>, <｜Assistant｜>, <s>, [INST], <start_of_turn>, <tool_call>, <think> and their like
SPECIAL_TOKENS = (
    r"<[|｜][^<>|｜]{1,64}[|｜]>"
    r"|</?s>|<(?:bos|eos|pad|unk|mask)>|</?(?:start|end)_of_turn>|<(?:start|end|sep)_?of_[a-z_]{1,32}>"
    r"|\[/?(?:INST|SYS|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT|THINK)\]|<</?SYS>>"
    r"|</?(?:think|tool_call|tool_calls|tool_response|tools|function_call)>"
)


def conversation_digests(rows: pa.Table) -> list[bytes]:
    """A hash per row, equal for equal conversations."""
    messages = rows["messages"].combine_chunks()
    structs = pc.list_flatten(messages)
    calls = pc.list_flatten(structs.field("tool_calls"))
    function = calls.field("function")
    call_texts = _join(function.field("name"), function.field("arguments"))
    calls_of_message = _joined_lists(call_texts, pc.list_value_length(structs.field("tool_calls")), _CALL)
    message_texts = _join(
        structs.field("role"), structs.field("content"), structs.field("reasoning_content"), calls_of_message
    )
    return digests(_joined_lists(message_texts, pc.list_value_length(messages), _MESSAGE))


def digests(texts: Any) -> list[bytes]:
    """A hash per text; nulls count as empty."""
    return [hashlib.blake2b((text or "").encode(), digest_size=_DIGEST_BYTES).digest() for text in texts.to_pylist()]


def is_first(digests_N: list[bytes], seen: set[bytes]) -> NDArray[np.bool_]:
    """Shape (N,): True where a digest is neither in `seen` nor earlier in the list, which is then
    added to `seen`; [a, b, a] gives [True, True, False]."""
    is_first_N = np.zeros(len(digests_N), bool)
    for index, digest in enumerate(digests_N):
        is_first_N[index] = digest not in seen
        seen.add(digest)
    return is_first_N


def has_no_special_tokens(rows: pa.Table) -> NDArray[np.bool_]:
    """Shape (N,): True where no text, reasoning, tool name or argument of the agent has one.
    Arguments are searched as written and with JSON's escapes of `<` and `>` resolved."""
    lists = rows["messages"].combine_chunks()
    structs = pc.list_flatten(lists)
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    is_agent = bool_array(pc.equal(structs.field("role"), "assistant"))
    calls = structs.field("tool_calls")
    function = pc.list_flatten(calls).field("function")
    message_of_call = pc.list_parent_indices(calls).to_numpy(zero_copy_only=False)
    found = _matches(structs.field("content")) | _matches(structs.field("reasoning_content"))
    in_call = _matches(function.field("name")) | _matches(_unescaped(function.field("arguments")))
    found[message_of_call[in_call]] = True
    is_free: NDArray[np.bool_] = np.bincount(parents[found & is_agent], minlength=rows.num_rows) == 0
    return is_free


def _join(*fields: Any) -> Any:
    return pc.binary_join_element_wise(*fields, _FIELD, null_handling="replace", null_replacement="")


def _joined_lists(texts: Any, lengths: Any, separator: str) -> Any:
    # a list is a range of the flat texts: its offsets are the running sum of the lengths
    offsets = np.concatenate([[0], np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False))]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), separator)


def _unescaped(texts: pa.Array) -> pa.Array:
    texts = pc.replace_substring_regex(texts, r"\\u003[cC]", "<")
    return pc.replace_substring_regex(texts, r"\\u003[eE]", ">")


def _matches(texts: pa.Array) -> NDArray[np.bool_]:
    return bool_array(pc.match_substring_regex(texts, SPECIAL_TOKENS))
