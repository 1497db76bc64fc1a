"""Finds trajectories whose agent writes a model's special tokens: trained on, they would teach it
to end a turn, or to begin another role's, in the middle of a text.

The base model is not known yet, so the tokens of all families of chat templates are looked for.
Users and tools may write them: there they are tokenised as ordinary text
(`posttrain/models/special_token_escape.py`).
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from posttrain.data.validation.flat import bool_array

# <|im_end|>, <｜Assistant｜>, <s>, [INST], <start_of_turn>, <tool_call>, <think> and their like
SPECIAL_TOKENS = (
    r"<[|｜][^<>|｜]{1,64}[|｜]>"
    r"|</?s>|<(?:bos|eos|pad|unk|mask)>|</?(?:start|end)_of_turn>|<(?:start|end|sep)_?of_[a-z_]{1,32}>"
    r"|\[/?(?:INST|SYS|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT|THINK)\]|<</?SYS>>"
    r"|</?(?:think|tool_call|tool_calls|tool_response|tools|function_call)>"
)


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


def _unescaped(texts: pa.Array) -> pa.Array:
    texts = pc.replace_substring_regex(texts, r"\\u003[cC]", "<")
    return pc.replace_substring_regex(texts, r"\\u003[eE]", ">")


def _matches(texts: pa.Array) -> NDArray[np.bool_]:
    return bool_array(pc.match_substring_regex(texts, SPECIAL_TOKENS))
