"""Formats of trajectory files that can be imported, in the order in which a record is tried."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.data.importing import benchmark_results as bench
from posttrain.data.importing import chats
from posttrain.data.importing.fields import Fields


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
        Format("tau_bench", "traj, reward, trial", bench.is_tau_bench, bench.read_tau_bench, bench.TAU_STOP_TOOLS),
        Format("tau2", "simulations with reward_info", bench.is_tau2, bench.read_tau2, bench.TAU_STOP_TOOLS),
        Format("xlam", "query, answers, tools", chats.is_xlam, chats.read_xlam),
        Format("agentgym", "item_id, conversations with loss", chats.is_agentgym, chats.read_agentgym),
        Format("sharegpt", "conversations of from and value", chats.is_sharegpt, chats.read_chat),
        Format("openai", "messages of role and content", chats.is_chat, chats.read_chat),
        Format("trl", "prompt and completion, or chosen and rejected", chats.is_preference, chats.read_preference),
        Format("bfcl", "id, result, inference_log", bench.is_bfcl, bench.read_bfcl),
    )
}


def detect_format(records: Iterable[Mapping[str, Any]]) -> Format | None:
    """The format of most of the records; None where none has one."""
    counts = Counter(found.name for record in records if (found := format_of(record)))
    return FORMATS[max(counts, key=lambda name: counts[name])] if counts else None


def format_of(record: Mapping[str, Any]) -> Format | None:
    """The first format that matches the record."""
    return next((one for one in FORMATS.values() if one.matches(record)), None)
