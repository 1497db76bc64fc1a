"""Reads a file of trajectories into rows: tells its format by its records, puts bad records aside,
and infers the tools where none were recorded."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posttrain.data.importing.episodes import UNKNOWN_TOOLS, row_of
from posttrain.data.importing.fields import Fields
from posttrain.data.importing.formats import FORMATS, Format, expected, format_of, recognise
from posttrain.data.importing.inferred_tools import infer_tools
from posttrain.data.importing.records import Bad, read_records
from posttrain.data.schemas import TrajectoryRow
from posttrain.runtime.exits import DataError

NUM_LOOKED_AT = 100  # of a file's first records, to tell its format


@dataclass(frozen=True, slots=True)
class Imported:
    """The rows in the file's order, and the records that are none. `unread` counts the rows that
    have a key, or another thing, that the import did not read."""

    rows: list[TrajectoryRow]
    bad: list[Bad]
    file_format: str
    unread: Mapping[str, int] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        """Of each row in its file, from 1."""
        return sorted({*range(1, len(self.rows) + len(self.bad) + 1)} - {one.number for one in self.bad})


def import_trajectories(path: Path, file_format: str | None = None, *, stop_tools: Collection[str] = ()) -> Imported:
    """Every trajectory of the file, as demonstrations (split `sft`, unless it says another).

    `file_format` is one of FORMATS; without it the records tell. Where there is no `task_id`,
    episodes with one opening are taken for plays of one task. `stop_tools` are further tools whose
    call ends an episode. Raises DataError where the file is absent, cut off, empty, or of another
    format than the one named or any known.
    """
    records = read_records(path)
    head = list(itertools.islice(records, NUM_LOOKED_AT))
    if not head:
        raise DataError(f"{path} has no trajectory; nothing can be learnt or measured from it: check the path")
    readable = [record for _, record in head if not isinstance(record, Bad)]
    if not readable:
        first = next(record for _, record in head if isinstance(record, Bad))
        raise DataError(f"{path}: none of its first {len(head)} records can be read; of the first, {first.reason}")
    chosen = _format(path, readable, file_format)
    rows: list[TrajectoryRow] = []
    bad: list[Bad] = []
    unread: Counter[str] = Counter()
    for number, record in itertools.chain(head, records):
        found = record if isinstance(record, Bad) else _row(number, record, chosen, stop_tools, unread)
        if isinstance(found, Bad):
            bad.append(found)
        else:
            rows.append(found)
    inferred = infer_tools([row.trajectory.messages for row in rows if row.tools is UNKNOWN_TOOLS])
    rows = [replace(row, tools=inferred) if row.tools is UNKNOWN_TOOLS else row for row in rows]
    return Imported(rows, bad, chosen.name, dict(sorted(unread.items())))


def refuse_too_many_bad(imported: Imported, *, max_quarantine_frac: float, source: Path) -> None:
    """Raises DataError, in one sentence, where more than the accepted share of the records, or all,
    are bad."""
    num_bad, num_records = len(imported.bad), len(imported.bad) + len(imported.rows)
    if imported.rows and num_bad <= max_quarantine_frac * num_records:
        return
    reasons = Counter(bad.reason for bad in imported.bad).most_common(3)
    first = {bad.reason: bad.number for bad in reversed(imported.bad)}
    listed = "; ".join(f"{reason} ({count}, first record {first[reason]})" for reason, count in reasons)
    raise DataError(
        f"{source}: {num_bad} of {num_records} records are no trajectory in the format {imported.file_format}, and "
        f"validate_data.max_quarantine_frac accepts {max_quarantine_frac:.1%}: {listed}. Mend or remove them, or name "
        "the format that the file has in generate_data.source.format"
    )


def unread_keys(imported: Imported) -> str:
    """The keys that were not read, with the number of records, in one sentence; empty where all
    were."""
    listed = ", ".join(f"{key} in {count}" for key, count in imported.unread.items())
    return f"keys not read, by the number of records: {listed}" if listed else ""


def quarantined(bad: Iterable[Bad]) -> Iterator[dict[str, Any]]:
    """One object per bad record: `number` in the file from 1, `reason`, and how it begins."""
    for one in bad:
        yield {"number": one.number, "reason": one.reason, "record": one.shown}


def _format(path: Path, records: list[dict[str, Any]], named: str | None) -> Format:
    found = recognise(records)
    if named is not None and named not in FORMATS:
        raise DataError(f"there is no format {named!r} to read {path} in; there are {', '.join(FORMATS)}")
    if named is None or any(FORMATS[named].looks_like(record) for record in records):
        chosen = found if named is None else FORMATS[named]
    elif found is not None:
        raise DataError(
            f"{path} looks like {found.name} ({found.keys}), and generate_data.source.format says {named} "
            f"({FORMATS[named].keys}); correct it, or leave it out"
        )
    else:
        chosen = None
    if chosen is None:
        keys = ", ".join(sorted(records[0]))[:200]
        raise DataError(f"{path} has records of {keys}, which no known format has; there are {expected()}")
    return chosen


def _row(
    number: int, record: Mapping[str, Any], chosen: Format, stop_tools: Collection[str], unread: Counter[str]
) -> TrajectoryRow | Bad:
    fields = Fields(record, "record", set())
    try:
        row = row_of(chosen.read(fields), fields, stop_tools={*stop_tools, *chosen.stop_tools})
        unread.update(fields.unread)
        return row
    except Exception as error:  # whatever one record of a stranger's file does to the readers, the others are read
        other = format_of(record)
        hint = "" if other is None or other is chosen else f"; it looks like {other.name}"
        return Bad.of(number, f"{_said(error, chosen)}{hint}", record)


def _said(error: Exception, chosen: Format) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, RecursionError):
        return "brackets nested too deep"
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return said if isinstance(error, ValueError) else f"it is not as {chosen.name} has it ({said})"
