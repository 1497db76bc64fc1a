"""Imports a file of trajectories as rows: detects its format, quarantines bad records, and infers
tool schemas where none were recorded. `FORMATS` stand in the order in which a record is tried."""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posttrain.data.files import first_line
from posttrain.data.importing import agent_logs as logs
from posttrain.data.importing import benchmark_results as bench
from posttrain.data.importing import chats, spans
from posttrain.data.importing.fields import Fields
from posttrain.data.importing.records import BadRecord, read_records
from posttrain.data.importing.rows import UNKNOWN_TOOLS, row_of
from posttrain.data.importing.tools import infer_tools
from posttrain.data.schemas import TrajectoryRow
from posttrain.runtime.exits import DataError

NUM_PROBED = 100  # first records of a file, by which its format is detected


@dataclass(frozen=True, slots=True)
class Format:
    """`matches` recognises a record by its keys, `read` gives what `rows.row_of` takes, `keys`
    describes such a record in errors, and calls of `stop_tools` end its episodes."""

    name: str
    keys: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Fields], Mapping[str, Any]]
    stop_tools: tuple[str, ...] = ()


def _has(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda record: all(key in record for key in keys)


FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format("tau_bench", "traj, reward, trial", _has("traj"), bench.read_tau_bench, bench.TAU_STOP_TOOLS),
        Format("tau2", "simulations with reward_info", bench.is_tau2, bench.read_tau2, bench.TAU_STOP_TOOLS),
        Format("xlam", "query, answers, tools", _has("query", "answers"), chats.read_xlam),
        Format("agentgym", "item_id, conversations with loss", _has("item_id", "conversations"), chats.read_agentgym),
        Format("sharegpt", "conversations of from and value", chats.is_sharegpt, chats.read_chat),
        Format("openai", "messages of role and content", chats.is_chat, chats.read_chat),
        Format("trl", "prompt and completion, or chosen and rejected", chats.is_preference, chats.read_preference),
        Format("alpaca", "instruction, input and output", chats.is_instruction, chats.read_instruction),
        Format("bfcl", "id, result, inference_log", _has("id", "result"), bench.read_bfcl),
        Format("otel", "resourceSpans, or spans", _has("spans"), spans.read_otel),
        Format("react", "steps of thought, action, action_input and observation", logs.is_steps, logs.read_steps),
        Format("atif", "schema_version, agent, steps", _has("agent", "steps"), logs.read_atif),
        Format("swe_agent", "trajectory, info", logs.is_swe_agent, logs.read_swe_agent, ("submit",)),
        Format("openhands", "history of events", logs.is_openhands, logs.read_openhands, ("finish",)),
    )
}


@dataclass(frozen=True, slots=True)
class Imported:
    """The rows in the file's order, the bad records, and for each key that the import did not read
    the number of rows that have it (`unread`)."""

    rows: list[TrajectoryRow]
    bad: list[BadRecord]
    file_format: str
    unread: Mapping[str, int] = field(default_factory=dict)

    @property
    def record_numbers(self) -> list[int]:
        """The number of each row's record in the file, from 1."""
        return sorted({*range(1, len(self.rows) + len(self.bad) + 1)} - {one.number for one in self.bad})


def import_trajectories(path: Path, file_format: str | None = None, *, stop_tools: Collection[str] = ()) -> Imported:
    """Import every trajectory of a file as a demonstration (split `sft`, unless it says another).

    `file_format` is one of FORMATS; without it the first records decide. Episodes without a
    `task_id` belong to one task where they have one opening. Calls of `stop_tools` end an episode,
    besides those of the format. Raises DataError where the file is absent, cut off, empty, or of
    another format than the named one, or of none that is known.
    """
    records = read_records(path)
    head = list(itertools.islice(records, NUM_PROBED))
    if not head:
        raise DataError(f"{path} has no trajectory; nothing can be trained on or measured: check the path")
    readable = [record for _, record in head if not isinstance(record, BadRecord)]
    if not readable:
        first = next(record for _, record in head if isinstance(record, BadRecord))
        raise DataError(f"{path}: none of its first {len(head)} records can be read; of the first, {first.reason}")
    chosen = _format(path, readable, file_format)
    rows: list[TrajectoryRow] = []
    bad: list[BadRecord] = []
    unread: Counter[str] = Counter()
    for number, record in itertools.chain(head, records):
        found = record if isinstance(record, BadRecord) else _row(number, record, chosen, stop_tools, unread)
        if isinstance(found, BadRecord):
            bad.append(found)
        else:
            rows.append(found)
    inferred = infer_tools([row.trajectory.messages for row in rows if row.tools is UNKNOWN_TOOLS])
    rows = [replace(row, tools=inferred) if row.tools is UNKNOWN_TOOLS else row for row in rows]
    return Imported(rows, bad, chosen.name, dict(sorted(unread.items())))


def format_of(record: Mapping[str, Any]) -> Format | None:
    """The first format that matches the record."""
    return next((one for one in FORMATS.values() if one.matches(record)), None)


def refuse_too_many_bad(imported: Imported, *, max_quarantine_frac: float, source: Path) -> None:
    """Raises DataError where more records than the accepted share, or all, are bad."""
    num_bad, num_records = len(imported.bad), len(imported.bad) + len(imported.rows)
    if imported.rows and num_bad <= max_quarantine_frac * num_records:
        return
    raise DataError(
        f"{source}: {num_bad} of {num_records} records are no trajectory in the format {imported.file_format}, and "
        f"validate_data.max_quarantine_frac accepts {max_quarantine_frac:.1%}: {reasons_of(imported.bad)}. Mend or "
        "remove them, or name the format that the file has in generate_data.source.format"
    )


def reasons_of(bad: Sequence[BadRecord]) -> str:
    """The three most common reasons, each with its first record."""
    first = {one.reason: one.number for one in reversed(bad)}
    reasons = Counter(one.reason for one in bad).most_common(3)
    return "; ".join(f"{reason} ({count}, first record {first[reason]})" for reason, count in reasons)


def unread_keys(unread: Mapping[str, int]) -> str:
    """A sentence on the keys that were not read; empty where all were."""
    listed = ", ".join(f"{key} in {count}" for key, count in unread.items())
    return f"keys not read, by the number of records: {listed}" if listed else ""


def quarantined(bad: Iterable[BadRecord]) -> Iterator[dict[str, Any]]:
    """Lines of quarantine.jsonl: a record's number from 1, the reason, its beginning."""
    for one in bad:
        yield {"number": one.number, "reason": one.reason, "record": one.shown}


def _format(path: Path, records: list[dict[str, Any]], named: str | None) -> Format:
    """The named format, else that of most of the records."""
    if named is not None and named not in FORMATS:
        raise DataError(f"there is no format {named!r} to read {path} in; there are {', '.join(FORMATS)}")
    if named is not None and any(FORMATS[named].matches(record) for record in records):
        return FORMATS[named]
    counts = Counter(found.name for record in records if (found := format_of(record)))
    if not counts:
        keys = ", ".join(sorted(records[0]))[:200]
        known = "; ".join(f"{one.name} ({one.keys})" for one in FORMATS.values())
        raise DataError(f"{path} has records of {keys}, which no known format has; there are {known}")
    found = FORMATS[max(counts, key=lambda name: counts[name])]
    if named is not None:
        raise DataError(
            f"{path} looks like {found.name} ({found.keys}), and generate_data.source.format says {named} "
            f"({FORMATS[named].keys}); correct it, or leave it out"
        )
    return found


def _row(
    number: int, record: Mapping[str, Any], chosen: Format, stop_tools: Collection[str], unread: Counter[str]
) -> TrajectoryRow | BadRecord:
    fields = Fields(record, "record", set())
    try:
        row = row_of(chosen.read(fields), fields, stop_tools={*stop_tools, *chosen.stop_tools})
        unread.update(fields.unread)
        return row
    except Exception as error:  # one untrusted record may raise anything; the others are still read
        other = format_of(record)
        hint = "" if other is None or other is chosen else f"; it looks like {other.name}"
        return BadRecord.of(number, f"{_reason(error, chosen)}{hint}", record)


def _reason(error: Exception, chosen: Format) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    text = first_line(error)
    return text if isinstance(error, (ValueError, RecursionError)) else f"it is not as {chosen.name} has it ({text})"
