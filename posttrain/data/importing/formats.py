"""Formats of trajectory files that can be imported, in the order in which a record is tried."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.data.importing.benchmark_results import (
    TAU_STOP_TOOLS,
    is_bfcl,
    is_tau2,
    is_tau_bench,
    read_bfcl,
    read_tau2,
    read_tau_bench,
)
from posttrain.data.importing.chats import is_chat, is_preference, is_sharegpt, read_chat, read_preference
from posttrain.data.importing.fields import Fields
from posttrain.data.importing.research_sets import (
    TOOLBENCH_STOP_TOOLS,
    is_agentgym,
    is_toolbench,
    is_xlam,
    read_agentgym,
    read_toolbench,
    read_xlam,
)


@dataclass(frozen=True, slots=True)
class Format:
    """`matches` recognises a record by its keys, `read` takes its fields for
    `rows.row_of`, `keys` describes such a record in error messages, and calls of `stop_tools` end
    its episodes."""

    name: str
    keys: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Fields], Mapping[str, Any]]
    stop_tools: tuple[str, ...] = ()


FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format("tau_bench", "traj, reward, trial", is_tau_bench, read_tau_bench, TAU_STOP_TOOLS),
        Format("tau2", "simulations of messages, reward_info", is_tau2, read_tau2, TAU_STOP_TOOLS),
        Format("xlam", "query, answers, tools", is_xlam, read_xlam),
        Format("agentgym", "item_id, conversations with loss", is_agentgym, read_agentgym),
        Format("toolbench", "conversations with Action Input:", is_toolbench, read_toolbench, TOOLBENCH_STOP_TOOLS),
        Format("sharegpt", "conversations of from and value", is_sharegpt, read_chat),
        Format("openai", "messages of role and content", is_chat, read_chat),
        Format("trl", "prompt and completion, or chosen and rejected", is_preference, read_preference),
        Format("bfcl", "id, result, inference_log", is_bfcl, read_bfcl),
    )
}


def detect_format(records: Iterable[Mapping[str, Any]]) -> Format | None:
    """The format of most of the records; None where none has one."""
    counts = Counter(found.name for record in records if (found := format_of(record)))
    return FORMATS[max(counts, key=lambda name: counts[name])] if counts else None


def format_of(record: Mapping[str, Any]) -> Format | None:
    """The first format that matches the record."""
    return next((one for one in FORMATS.values() if one.matches(record)), None)
