"""The formats that can be imported, in the order in which a record is held against them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.data.importing import agentgym, bfcl, openai_chat, tau, toolbench, trl_sets, xlam
from posttrain.data.importing.fields import Fields


@dataclass(frozen=True, slots=True)
class Format:
    """`read` takes the fields of its own from a record, for `episodes.row_of`; `keys` say in a
    message what a record of it has, `stop_tools` end its episodes."""

    name: str
    keys: str
    looks_like: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Fields], Mapping[str, Any]]
    stop_tools: tuple[str, ...] = ()


FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format("tau_bench", "traj, reward, trial", tau.looks_like_tau_bench, tau.read_tau_bench, tau.STOP_TOOLS),
        Format("tau2", "simulations of messages, reward_info", tau.looks_like_tau2, tau.read_tau2, tau.STOP_TOOLS),
        Format("xlam", "query, answers, tools", xlam.looks_like, xlam.read),
        Format("agentgym", "item_id, conversations with loss", agentgym.looks_like, agentgym.read),
        Format(
            "toolbench", "conversations with Action Input:", toolbench.looks_like, toolbench.read, toolbench.STOP_TOOLS
        ),
        Format("sharegpt", "conversations of from and value", openai_chat.looks_like_sharegpt, openai_chat.read),
        Format("openai", "messages of role and content", openai_chat.looks_like, openai_chat.read),
        Format("trl", "prompt and completion, or chosen and rejected", trl_sets.looks_like, trl_sets.read),
        Format("bfcl", "id, result, inference_log", bfcl.looks_like, bfcl.read),
    )
}


def recognise(records: Iterable[Mapping[str, Any]]) -> Format | None:
    """The format that most of the records have; None where none has one."""
    counts = Counter(found.name for record in records if (found := format_of(record)))
    return FORMATS[max(counts, key=lambda name: counts[name])] if counts else None


def format_of(record: Mapping[str, Any]) -> Format | None:
    """The first format that the record looks like."""
    return next((one for one in FORMATS.values() if one.looks_like(record)), None)


def expected() -> str:
    """All formats with their keys, for a message."""
    return "; ".join(f"{one.name} ({one.keys})" for one in FORMATS.values())
