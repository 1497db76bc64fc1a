"""Describes a demonstration for resampling: its cell (subpopulation) and the steps of its agent.

A cell is the labels named in params.yaml × the style: `reasoning` where the agent reasons, `tools`
where it only acts. Each label divides every cell, so name few: rare cells are oversampled.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from posttrain.data.schemas import TrajectoryRow
from posttrain.types import Message, ToolCall
from posttrain.worlds.tools import is_error

REASON, FAILED, AGAIN, ASK, SAY, SILENT = "<reason>", "<failed>", "<again>", "<ask>", "<say>", "<silent>"


def cell_of(row: TrajectoryRow, labels: Sequence[str]) -> str:
    """The values of `labels` and the style, such as `tool_selection/zh/reasoning` for kind and
    language; `-` for a label that the row lacks."""
    style = "reasoning" if row.reasoning else "tools"
    return "/".join([*(row.labels.get(label, "-") for label in labels), style])


def count_cells(
    validated: Sequence[str], after_quality: Sequence[str], after_coreset: Sequence[str], added: Sequence[str]
) -> dict[str, Mapping[str, int]]:
    """Rows of each validated cell at every step, for summary.json; each argument is the cells of
    all rows at that point, and `after` counts the training set."""
    before, good, core, new = (Counter(cells) for cells in (validated, after_quality, after_coreset, added))
    return {
        cell: {
            "validated": before[cell],
            "after_quality": good[cell],
            "after_coreset": core[cell],
            "after": core[cell] + new[cell],
        }
        for cell in sorted(before)
    }


def steps_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """The agent's actions in order, as tool names and tags, without arguments.

    A search that failed, the same search with another tool after reasoning, and an answer give
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
            steps += [AGAIN] if _key(call) in seen else []  # equal arguments too: a retry that changes nothing
            steps += [FAILED] if failed(results.get(call.id, "")) else []
            seen.add(_key(call))
        if not message.tool_calls:
            steps.append(_kind_of_text(message.content))
    return tuple(steps)


def opening_text(messages: Sequence[Message]) -> str:
    """The user's texts before the agent's first message."""
    opening = itertools.takewhile(lambda message: message.role != "assistant", messages)
    return "\n".join(message.content for message in opening if message.role == "user")


def failed(result: str) -> bool:
    """True if a tool's result is an error: in the format of this project's worlds, or as in
    tau-bench plain text that begins with `Error`."""
    return is_error(result) or result.startswith("Error")


def _key(call: ToolCall) -> tuple[str, str]:
    return call.name, call.arguments


def _kind_of_text(content: str) -> str:
    if not content.strip():
        return SILENT
    return ASK if content.strip().splitlines()[-1].startswith("ASK") else SAY
