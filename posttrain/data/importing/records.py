"""Reads the records of a file one at a time: JSONL, Parquet, or JSON (an array, one object, or an
object with a list of simulations), also compressed by gzip or zstd.

A bad line is reported and passed over. JSON that is one value, and Parquet, are read whole or not
at all. JSON is read strictly: no NaN, and no key twice, because nobody can tell which of the two
was meant. Keys of a record whose value is null are left out.
"""

import contextlib
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.data.files import first_line
from posttrain.data.importing.spans import join_parts
from posttrain.runtime.exits import DataError
from posttrain.runtime.limits import MAX_LINE_BYTES, clip, reason

MAX_WHOLE_BYTES = 2**30  # of a JSON file, which is read whole; JSONL and Parquet have no bound
NUM_ROWS, NUM_BYTES = 256, 64 * 2**20  # of Parquet in memory at once, by the mean row of a group
MAX_SHOWN_CHARS = 2_000  # of a record in quarantine: enough to find it in its file
_OPENERS: Mapping[bytes, Callable[[Path], Any]] = {  # by the magic bytes of compressed files
    b"\x1f\x8b": gzip.open,
    b"\x28\xb5\x2f\xfd": lambda path: io.BufferedReader(pa.input_stream(path, compression="zstd")),
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"[\x00")  # a file's first bytes


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that is no trajectory: its number from 1, the reason, and its beginning."""

    number: int
    reason: str
    shown: str

    @classmethod
    def of(cls, number: int, why: str, content: object) -> "BadRecord":
        """API keys are redacted from the content, which may be anything."""
        text = content if isinstance(content, str) else _text_of(content)
        return cls(number, reason(why), clip(text, MAX_SHOWN_CHARS))


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any] | BadRecord]]:
    """Number and content of each record. Raises DataError where the file cannot be read."""
    if not path.is_file():
        raise DataError(f"{path} is not a file; check the path (it is relative to where the command runs)")
    try:
        for number, record in enumerate(join_parts(_records(path)), 1):
            if isinstance(record, BadRecord):
                yield number, BadRecord(number, record.reason, record.shown)
            elif isinstance(record, dict):
                yield number, {key: value for key, value in record.items() if value is not None}
            else:
                yield number, BadRecord.of(number, f"it is {type(record).__name__}, not an object", record)
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is packed and cut off or damaged ({first_line(error)}): fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or first_line(error)})") from error


def _records(path: Path) -> Iterable[Any]:
    with _opened(path) as file:
        head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(_UTF16):
        raise DataError(f"{path} is UTF-16 text by its first bytes: write it as UTF-8 (`iconv -f UTF-16 -t UTF-8`)")
    if path.suffix == ".parquet" or head.startswith(b"PAR1"):
        return _parquet(path)
    if head.startswith(b"["):
        return cast(list[Any], _whole(path))
    if head.startswith(b"{") and (content := _one_object(path)) is not None:
        return _simulations(content)
    return _lines(path)


def _opened(path: Path) -> IO[bytes]:
    """The file, decompressed on the fly."""
    with path.open("rb") as file:
        head = file.read(8)
    opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
    return path.open("rb") if opener is None else cast(IO[bytes], opener(path))


def _lines(path: Path) -> Iterator[Any]:
    with _opened(path) as file:
        for line in iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""):
            if len(line) > MAX_LINE_BYTES:
                _skip_line(file, line)
                yield BadRecord.of(0, f"its line is longer than {MAX_LINE_BYTES} bytes", _lenient(line[:8192]))
            elif line.strip(b" \t\r\n\v\f\xef\xbb\xbf\x00"):
                yield from _simulations(_record(line))


def _skip_line(file: IO[bytes], line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = file.readline(MAX_LINE_BYTES)


def _record(line: bytes) -> Any:
    try:
        return _STRICT.decode(line.decode("utf-8-sig").strip())
    except UnicodeDecodeError as error:
        return BadRecord.of(0, f"its line is not UTF-8 text ({error.reason} at byte {error.start})", _lenient(line))
    except (ValueError, RecursionError) as error:
        return BadRecord.of(0, f"its line is not JSON ({first_line(error)})", _lenient(line))


def _lenient(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _whole(path: Path) -> Any:
    """The value of a file of JSON. Raises DataError where it is too large, cut off or damaged."""
    with _opened(path) as file:
        content = file.read(MAX_WHOLE_BYTES + 1)
    if len(content) > MAX_WHOLE_BYTES:
        raise DataError(
            f"{path} is one JSON value of more than {MAX_WHOLE_BYTES} bytes, the most that is read at once: "
            "write it as JSONL, an object a line"
        )
    try:
        return _STRICT.decode(content.decode("utf-8-sig").strip())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise DataError(
            f"{path} is cut off or damaged ({first_line(error)}); nothing was read: fetch or export the file again, or "
            "write it as JSONL, of which a bad line goes aside alone"
        ) from error


def _one_object(path: Path) -> dict[str, Any] | None:
    """The object where the file is one; None where its first line is one already (JSONL)."""
    with _opened(path) as file:
        if isinstance(_record(file.readline(MAX_LINE_BYTES + 1)), dict):
            return None
    with contextlib.suppress(DataError):
        content = _whole(path)
        return content if isinstance(content, dict) else None
    return None


def _simulations(content: Any) -> Iterable[Any]:
    """The runs in tau2's `simulations`, each with the `info` beside them; else the content."""
    simulations = content.get("simulations") if isinstance(content, dict) else None
    if not isinstance(simulations, list) or not simulations:
        return [content]
    around = {"info": content.get("info"), "tasks": None}
    return ({**around, **run} if isinstance(run, dict) else run for run in simulations)


def _parquet(path: Path) -> Iterator[Any]:
    try:
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            fitting = NUM_BYTES * group.num_rows // max(group.total_byte_size, 1)
            for batch in file.iter_batches(max(1, min(NUM_ROWS, fitting)), row_groups=[number]):
                batch.validate(full=True)  # checks UTF-8 too, which PyArrow does not by itself
                yield from batch.to_pylist()
    except (pa.ArrowException, ValueError, MemoryError, OverflowError) as error:
        raise DataError(
            f"{path} ({path.stat().st_size} bytes) is no whole Parquet file ({first_line(error)}): export it again"
        ) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _text_of(content: object) -> str:
    try:
        return json.dumps(content, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return f"({type(content).__name__})"


_STRICT = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
