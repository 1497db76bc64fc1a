"""Atomic writes and checked reads of Parquet, JSONL, JSON and text.

A writer fills a temporary sibling and renames it; the same content gives the same bytes. A reader
raises DataError with the file, what could be read of it, and what to do. A full disk stays an
OSError: `provenance/runner.py` explains it. Tables that grow with the number of demonstrations are
read and written in batches, so that memory does not grow with the file.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from posttrain.runtime.exits import DataError

NOT_ASKED = "not_asked.txt"  # in the folder of a model that was not trained: why
BATCH_ROWS, BATCH_BYTES = 16384, 64 * 2**20  # of Arrow memory; processing a batch takes several times as much
_GROUP_ROWS, _GROUP_BYTES = 65536, 128 * 2**20  # of a Parquet row group
_STEP_ROWS = 512  # read at once, so a batch exceeds its limit by at most as many
_READ_BYTES = 2**20  # of a compressed column at once; PyArrow would otherwise hold a whole row group

_LATER = frozenset({"window_starts", "window_roles", "delegated"})  # null where an older version wrote the file
_REMEDY = "make it again (`dvc repro`) or fetch it again from where it came"


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table with its own schema."""
    write_batches(path, [table], table.schema)


def write_batches(path: Path, batches: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write all batches as one table in zstd, holding one row group in memory: it ends at 64 Ki
    rows, or with the batch that takes it over 128 MiB. Dictionary encoding stores repeated texts
    (tool schemas) once."""
    with _atomic(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _grouped(batches, max_rows=_GROUP_ROWS, max_bytes=_GROUP_BYTES):
            writer.write_table(group, row_group_size=_GROUP_ROWS)


@dataclass(frozen=True, slots=True)
class ParquetBatches:
    """Iterates over a Parquet file in batches of consecutive rows; every loop reads it anew.

    A batch ends at `max_rows` rows, or with the 512 rows that take it over `max_bytes`. `columns`
    of `schema` are read, all of them where it is empty. A loop raises DataError where
    `read_parquet` does.
    """

    path: Path
    schema: pa.Schema
    columns: tuple[str, ...] = ()
    max_rows: int = BATCH_ROWS
    max_bytes: int = BATCH_BYTES

    def __iter__(self) -> Iterator[pa.Table]:
        wanted = [name for name in self.schema.names if not self.columns or name in self.columns]
        return _grouped(self._read(wanted), max_rows=self.max_rows, max_bytes=self.max_bytes)

    def _read(self, wanted: list[str]) -> Iterator[pa.Table]:
        with _reading(self.path), pq.ParquetFile(self.path, buffer_size=_READ_BYTES) as file:
            lacking = [name for name in wanted if name not in file.schema_arrow.names]
            if missing := [name for name in lacking if name not in _LATER]:
                raise DataError(f"{self.path} has no column {', '.join(missing)}: {_REMEDY}")
            # group by group: rows of two groups in one step could be more than a text column holds
            for group in range(file.num_row_groups):
                found = [name for name in wanted if name not in lacking]
                steps = file.iter_batches(min(_STEP_ROWS, self.max_rows), row_groups=[group], columns=found)
                for batch in steps:
                    table = pa.Table.from_batches([batch])
                    table.validate(full=True)  # UTF-8 and offsets too, which PyArrow does not check by itself
                    for name in lacking:
                        nulls = pa.nulls(len(table), self.schema.field(name).type)
                        table = table.append_column(name, nulls)
                    yield table.select(wanted).cast(pa.schema([self.schema.field(name) for name in wanted]))


def rows_at(batches: Iterable[pa.Table], positions: NDArray[np.int64]) -> Iterator[pa.Table]:
    """The rows at `positions` (ascending) of the file, one table per batch that has any; reading
    stops after the last position."""
    start = done = 0
    for batch in batches:
        end = int(np.searchsorted(positions, start + batch.num_rows))
        if end > done:
            yield batch.take(pa.array(positions[done:end] - start))
        start, done = start + batch.num_rows, end
        if done == len(positions):
            return


def read_parquet(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a whole table. Raises DataError where the file is absent, cut off, no Parquet, or lacks
    columns of `schema`."""
    return pa.concat_tables([schema.empty_table(), *ParquetBatches(path, schema)])


@contextlib.contextmanager
def reading_rows(path: Path) -> Iterator[None]:
    """Any error in it, of parsing the file's rows, becomes a DataError that names the file."""
    try:
        yield
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        text = f"{type(error).__name__}: {first_line(error)}"
        raise DataError(f"{path} has a row that cannot be read ({text}): {_REMEDY}") from error


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one compact JSON object a line, keys sorted."""
    with _atomic(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, sort_keys=True, allow_nan=False).encode() + b"\n")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every line's object, for files that a stage of this run wrote: damage raises ValueError."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object indented, keys sorted, newline at the end, so that commits diff well."""
    with _atomic(path) as file:
        file.write(json.dumps(content, ensure_ascii=False, sort_keys=True, indent=2, allow_nan=False).encode() + b"\n")


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8."""
    with _atomic(path) as file:
        file.write(text.encode())


def leave_untrained(folder: Path, why: str) -> None:
    """Put a note into a model's folder in place of a model, as DVC refuses to track an output
    without a file."""
    shutil.rmtree(folder, ignore_errors=True)
    write_text(folder / NOT_ASKED, f"{why}\n")


@contextlib.contextmanager
def _atomic(path: Path) -> Iterator[IO[bytes]]:
    """A temporary sibling to write to, renamed to `path` once it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _grouped(tables: Iterable[pa.Table], *, max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
    """Regroup tables: each result has one chunk and ends at `max_rows` rows, or with the table that
    takes it over `max_bytes`."""
    held: list[pa.Table] = []
    num_rows = num_bytes = 0
    for table in tables:
        rest = table
        while num_rows + rest.num_rows >= max_rows:
            yield pa.concat_tables([*held, rest.slice(0, max_rows - num_rows)]).combine_chunks()
            rest = rest.slice(max_rows - num_rows)
            held, num_rows, num_bytes = [], 0, 0
        if rest.num_rows:
            held.append(rest)
            num_rows, num_bytes = num_rows + rest.num_rows, num_bytes + rest.nbytes
        if num_bytes > max_bytes:
            yield pa.concat_tables(held).combine_chunks()
            held, num_rows, num_bytes = [], 0, 0
    if held:
        yield pa.concat_tables(held).combine_chunks()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there; {_REMEDY}") from error
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise DataError(
            f"{path} has {size} bytes but is no whole Parquet file, nothing was read ({first_line(error)}): {_REMEDY}"
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of an error's text; its class where it has none."""
    if isinstance(error, RecursionError):  # of a parser of JSON
        return "brackets nested too deep"
    return (str(error).splitlines() or [type(error).__name__])[0]
