"""How a file is written so that it is either whole or absent, and read so that a broken one says
where it broke.

Writing goes to a temporary sibling that is renamed; the same content gives the same bytes. Reading
raises DataError with the file, what could be read of it, and what to do. A disk that is full stays
an OSError: the frame of the stages tells a person what to do about it.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.exits import DataError

_REMEDY = "make it again (`dvc repro`) or fetch it again from where it came"


def write_parquet(path: Path, table: pa.Table) -> None:
    """One row group per 64 Ki rows, zstd; texts that repeat (offered tools, policy) are stored once
    by the dictionary encoding."""
    with _whole(path) as file:
        pq.write_table(table, file, compression="zstd", row_group_size=65536)


def read_parquet(path: Path, schema: pa.Schema | None = None, *, columns: list[str] | None = None) -> pa.Table:
    """The table, or some of its columns. Raises DataError where the file is absent, cut off, no
    Parquet, or lacks columns of `schema`."""
    try:
        table: pa.Table = pq.ParquetFile(path).read(columns=columns)
        table.validate(full=True)  # also that texts are texts and offsets lie within
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there; {_REMEDY}") from error
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise DataError(
            f"{path} has {size} bytes but is no whole Parquet file, nothing was read ({_first_line(error)}): {_REMEDY}"
        ) from error
    wanted = [] if schema is None else [name for name in schema.names if columns is None or name in columns]
    if missing := [name for name in wanted if name not in table.column_names]:
        raise DataError(
            f"{path} has {table.num_rows} rows but no column {', '.join(missing)}; "
            f"it holds {', '.join(table.column_names)}: {_REMEDY}"
        )
    if schema is None:
        return table
    try:
        return table.select(wanted).cast(pa.schema([schema.field(name) for name in wanted]))
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{path} has columns of other types than are read ({_first_line(error)}): {_REMEDY}") from error


@contextlib.contextmanager
def rows_of(path: Path) -> Iterator[None]:
    """Around making values of a file's rows: raises DataError where one holds what no stage
    writes."""
    try:
        yield
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} has a row that cannot be read ({type(error).__name__}: {_first_line(error)}): {_REMEDY}"
        ) from error


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One compact JSON object a line, keys sorted."""
    with _whole(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, sort_keys=True, allow_nan=False).encode() + b"\n")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every line's object. Raises DataError with the line where the file is absent, cut off, or
    holds something else; empty lines are skipped."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there; {_REMEDY}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {_REMEDY}") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            where = "the last line is cut off" if number == len(lines) else f"line {number} of {len(lines)} is not JSON"
            raise DataError(f"{path}: {where} ({error}); {len(rows)} rows were read before it: {_REMEDY}") from error
        if not isinstance(row, dict):
            raise DataError(
                f"{path}: line {number} holds {type(row).__name__}, not a JSON object; "
                f"{len(rows)} rows were read before it: {_REMEDY}"
            )
        rows.append(row)
    return rows


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Indented, keys sorted, newline at the end: made for a diff between commits."""
    with _whole(path) as file:
        file.write(json.dumps(content, ensure_ascii=False, sort_keys=True, indent=2, allow_nan=False).encode() + b"\n")


def write_text(path: Path, text: str) -> None:
    """UTF-8, as it stands."""
    with _whole(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
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


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
