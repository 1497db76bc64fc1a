"""Which trajectories have an agent that writes a model's control marks: learnt from, they would
teach it to end a turn, or to begin somebody else's, in the middle of its words.

The base model may be any, and is not known yet, so the marks are those of all families of chat
templates. In what users and tools say they do no harm: there they are read as ordinary text
(`posttrain/models/special_token_escape.py`).
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

# <|im_end|>, <｜Assistant｜>, <s>, [INST], <start_of_turn>, <tool_call>, <think> and their like
MARKS = (
    r"<[|｜][^<>|｜]{1,64}[|｜]>"
    r"|</?s>|<(?:bos|eos|pad|unk|mask)>|</?(?:start|end)_of_turn>|<(?:start|end|sep)_?of_[a-z_]{1,32}>"
    r"|\[/?(?:INST|SYS|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT|THINK)\]|<</?SYS>>"
    r"|</?(?:think|tool_call|tool_calls|tool_response|tools|function_call)>"
)


def is_free_of_marks(rows: pa.Table) -> NDArray[np.bool_]:
    """Shape (N,): True where no text, reasoning, tool name or argument of the agent's has a mark.
    Arguments are looked at as written and with JSON's escapes of `<` and `>` read."""
    lists = rows["messages"].combine_chunks()
    structs = pc.list_flatten(lists)
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    is_agent = _mask(pc.equal(structs.field("role"), "assistant"))
    calls = structs.field("tool_calls")
    function = pc.list_flatten(calls).field("function")
    message_of_call = pc.list_parent_indices(calls).to_numpy(zero_copy_only=False)
    has_mark = _marked(structs.field("content")) | _marked(structs.field("reasoning_content"))
    call_marked = _marked(function.field("name")) | _marked(_unescaped(function.field("arguments")))
    has_mark[message_of_call[call_marked]] = True
    is_free: NDArray[np.bool_] = np.bincount(parents[has_mark & is_agent], minlength=rows.num_rows) == 0
    return is_free


def _unescaped(texts: pa.Array) -> pa.Array:
    texts = pc.replace_substring_regex(texts, r"\\u003[cC]", "<")
    return pc.replace_substring_regex(texts, r"\\u003[eE]", ">")


def _marked(texts: pa.Array) -> NDArray[np.bool_]:
    return _mask(pc.match_substring_regex(pc.fill_null(texts, ""), MARKS))


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = pc.fill_null(values, False).to_numpy(zero_copy_only=False).astype(bool)
    return mask
