"""Which trajectories say again what an earlier one said: equal conversations teach nothing new and
weigh twice.

Two conversations are equal when roles, texts, reasoning and calls are; ids are left out, because
they are made up anew by whoever copies.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_FIELD, _CALL, _MESSAGE = "\x1f", "\x1e", "\x1d"  # ASCII's unit, record and group separators: no text has them


def is_first_conversation(rows: pa.Table) -> NDArray[np.bool_]:
    """Shape (N,): True for a conversation not met in an earlier row."""
    messages = rows["messages"].combine_chunks()
    structs = pc.list_flatten(messages)
    calls = pc.list_flatten(structs.field("tool_calls"))
    function = calls.field("function")
    call_texts = _join(function.field("name"), function.field("arguments"))
    calls_of_message = _joined_lists(call_texts, pc.list_value_length(structs.field("tool_calls")), _CALL)
    message_texts = _join(
        structs.field("role"), structs.field("content"), structs.field("reasoning_content"), calls_of_message
    )
    return is_first(_joined_lists(message_texts, pc.list_value_length(messages), _MESSAGE))


def is_first(values: Any) -> NDArray[np.bool_]:
    """Shape (N,): True where the value was not met before; ["a", "b", "a"] gives [True, True,
    False]. Nulls count as equal."""
    codes = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    _, first = np.unique(
        pc.fill_null(codes, "").dictionary_encode().indices.to_numpy(zero_copy_only=False), return_index=True
    )
    is_first_: NDArray[np.bool_] = np.zeros(len(codes), bool)
    is_first_[first] = True
    return is_first_


def _join(*fields: Any) -> Any:
    return pc.binary_join_element_wise(*fields, _FIELD, null_handling="replace", null_replacement="")


def _joined_lists(texts: Any, lengths: Any, separator: str) -> Any:
    offsets = np.concatenate([[0], np.cumsum(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False))]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), separator)
