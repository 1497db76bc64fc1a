"""What a demonstration is about (its cell) and what its agent did (its steps): the two views that
resampling works on.

A cell is the labels that params.yaml names × the style, which is `reasoning` for a demonstration in
which the agent reasons and `tools` for one in which it only acts. Name few: each label divides
every cell, and rare cells are the trouble here.
"""

from collections.abc import Sequence

from posttrain.data.schemas import TrajectoryRow
from posttrain.types import Message, ToolCall
from posttrain.worlds.tools import is_error

REASON, FAILED, AGAIN, ASK, SAY, SILENT = "<reason>", "<failed>", "<again>", "<ask>", "<say>", "<silent>"


def cell_of(row: TrajectoryRow, labels: Sequence[str]) -> str:
    """The values of `labels` and the style, for example `tool_selection/zh/reasoning` of kind and
    language; a label that the row lacks is `-`."""
    style = "reasoning" if row.reasoning else "tools"
    return "/".join([*(row.labels.get(label, "-") for label in labels), style])


def steps_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """What the agent did, without names and values: tool names and marks, in order.

    A search that failed, the same search in the twin tool after a thought, and an answer give
    ("search", "<failed>", "<reason>", "search_b", "<say>").
    """
    results = {message.tool_call_id: message.content for message in messages if message.role == "tool"}
    seen: set[tuple[str, str]] = set()
    steps: list[str] = []
    for message in messages:
        if message.role != "assistant":
            continue
        steps += [REASON] if message.reasoning_content else []
        for call in message.tool_calls:
            steps.append(call.name)
            steps += [AGAIN] if _key(call) in seen else []
            steps += [FAILED] if failed(results.get(call.id, "")) else []
            seen.add(_key(call))
        if not message.tool_calls:
            steps.append(_kind_of_text(message.content))
    return tuple(steps)


def opening_text(messages: Sequence[Message]) -> str:
    """What the user wrote before the agent's first message."""
    texts = []
    for message in messages:
        if message.role == "assistant":
            break
        texts += [message.content] if message.role == "user" else []
    return "\n".join(texts)


def failed(result: str) -> bool:
    """Whether a tool's result reports an error: as this project's worlds write it, or as plain text
    that begins with `Error`, as tau-bench's do."""
    return is_error(result) or result.startswith("Error")


def _key(call: ToolCall) -> tuple[str, str]:
    return call.name, call.arguments


def _kind_of_text(content: str) -> str:
    if not content.strip():
        return SILENT
    return ASK if content.strip().splitlines()[-1].startswith("ASK") else SAY
