"""Finds exact duplicates by hash: equal conversations teach nothing new and weigh twice.

Two conversations are equal when roles, texts, reasoning and calls are; ids are left out, because a
copy often gets new ones. Only 16 bytes of BLAKE2b are kept of each: a collision is expected among
2⁶⁴ different conversations.
"""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_FIELD, _CALL, _MESSAGE = "\x1f", "\x1e", "\x1d"  # ASCII's unit, record and group separators, which no text has
_DIGEST_BYTES = 16


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


def _join(*fields: Any) -> Any:
    return pc.binary_join_element_wise(*fields, _FIELD, null_handling="replace", null_replacement="")


def _joined_lists(texts: Any, lengths: Any, separator: str) -> Any:
    offsets = np.concatenate([[0], np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False))]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), separator)
