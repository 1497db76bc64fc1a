"""The records of a file, one at a time: JSONL, Parquet, or JSON (an array, one object, or one that
holds a list of simulations).

A record that cannot be read is named and passed over; only a file that is cut off in the middle of
JSON, too large to be read whole, or no such file at all is an error. Numbers are what JSON calls a
number and a key stands once: of two equal keys nobody can tell which was meant. What gzip, zstd,
bzip2 or xz packed is unpacked on the way. A key of a record whose value is null is left out.
"""

import bz2
import gzip
import io
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.runtime.exits import DataError
from posttrain.runtime.limits import MAX_LINE_BYTES, clip, reason

MAX_WHOLE_BYTES = 2**30  # of a JSON file, which is read at once; JSONL and Parquet have no bound
NUM_ROWS, NUM_BYTES = 256, 64 * 2**20  # of Parquet in memory at once, by the average of a row group
MAX_SHOWN_CHARS = 2_000  # of a record in quarantine: enough to find it in its file
_SEPARATOR = re.compile(r"[\s,]*")
_PACKED: Mapping[bytes, Callable[[Path], Any]] = {  # by the bytes that such a file begins with
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x28\xb5\x2f\xfd": lambda path: io.BufferedReader(pa.input_stream(path, compression="zstd")),
}
_UTF16 = "UTF-16 text by its first bytes: write it as UTF-8 (`iconv -f UTF-16 -t UTF-8`)"
_FOREIGN: Mapping[bytes, str] = {
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff", b"{\x00", b"[\x00"), _UTF16),
    b"PK\x03\x04": "a zip archive: unpack it (`unzip`) and name the file within",
    b"ARROW1": "Arrow's own format: write it as Parquet (`Dataset.to_parquet`)",
}


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that is no trajectory: which one, from 1, why, and how it begins."""

    number: int
    reason: str
    shown: str

    @classmethod
    def of(cls, number: int, why: str, content: object) -> "Bad":
        """The content may be anything; keys are cut out of what is shown of it."""
        text = content if isinstance(content, str) else _text_of(content)
        return cls(number, reason(why), clip(text, MAX_SHOWN_CHARS))


def read_records(path: Path) -> Iterator[tuple[int, dict[str, Any] | Bad]]:
    """Each record's number and content. Raises DataError where the file as a whole cannot be
    read."""
    if not path.is_file():
        raise DataError(f"{path} is not a file; check the path (it is relative to where the command runs)")
    try:
        records = _records(path)
        for number, record in enumerate(records, 1):
            if isinstance(record, Bad):
                yield number, Bad(number, record.reason, record.shown)
            elif isinstance(record, dict):
                yield number, {key: value for key, value in record.items() if value is not None}
            else:
                yield number, Bad.of(number, f"it is {type(record).__name__}, not an object", record)
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is packed and cut off or damaged ({_said(error)}): fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or _said(error)})") from error


def _records(path: Path) -> Iterable[Any]:
    with _opened(path) as file:
        head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if said := next((said for begins, said in _FOREIGN.items() if head.startswith(begins)), None):
        raise DataError(f"{path} is {said}; nothing was read")
    if path.suffix == ".parquet" or head.startswith(b"PAR1"):
        return _parquet(path)
    if head.startswith(b"["):
        return _items(path, _whole_text(path))
    if head.startswith(b"{") and (content := _one_object(path)) is not None:
        return _within(content)
    return _lines(path)


def _opened(path: Path) -> IO[bytes]:
    """The bytes of the file, unpacked where it is packed."""
    with path.open("rb") as file:
        begins = file.read(8)
    opened = next((unpacked for mark, unpacked in _PACKED.items() if begins.startswith(mark)), None)
    return path.open("rb") if opened is None else cast(IO[bytes], opened(path))


def _lines(path: Path) -> Iterator[Any]:
    with _opened(path) as file:
        for line in iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""):
            if len(line) > MAX_LINE_BYTES:
                _skip_line(file, line)
                yield Bad.of(
                    0, f"its line is longer than {MAX_LINE_BYTES} bytes", line[:8192].decode("utf-8", "replace")
                )
            elif line.strip(b" \t\r\n\v\f\xef\xbb\xbf\x00"):
                yield from _within(_record(line))


def _skip_line(file: IO[bytes], line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = file.readline(MAX_LINE_BYTES)


def _record(line: bytes) -> Any:
    try:
        return _STRICT.decode(line.decode("utf-8-sig").strip())
    except UnicodeDecodeError as error:
        return Bad.of(
            0, f"its line is not UTF-8 text ({error.reason} at byte {error.start})", line.decode("utf-8", "replace")
        )
    except (ValueError, RecursionError) as error:
        return Bad.of(0, f"its line is not JSON ({_said(error)})", line.decode("utf-8", "replace"))


def _whole_text(path: Path) -> str:
    with _opened(path) as file:
        content = file.read(MAX_WHOLE_BYTES + 1)
    if len(content) > MAX_WHOLE_BYTES:
        raise DataError(
            f"{path} is one JSON value of more than {MAX_WHOLE_BYTES} bytes, the most that is read at once: "
            "write it as JSONL, an object a line"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); nothing was read: export it again") from error


def _one_object(path: Path) -> dict[str, Any] | None:
    """The object that the file is; None where it is lines of objects, as its first one tells."""
    with _opened(path) as file:
        first = _record(file.readline(MAX_LINE_BYTES + 1))
        if isinstance(first, dict):
            return None
    try:
        content = _STRICT.decode(_whole_text(path).strip())
    except (ValueError, RecursionError, DataError):
        return None
    return content if isinstance(content, dict) else None


def _within(content: Any) -> Iterable[Any]:
    """tau2 writes one object with the runs as a list; what else it holds belongs to each."""
    simulations = content.get("simulations") if isinstance(content, dict) else None
    if not isinstance(simulations, list) or not simulations:
        return [content]
    around = {"info": content.get("info"), "tasks": None}
    return ({**around, **run} if isinstance(run, dict) else run for run in simulations)


def _items(path: Path, text: str) -> Iterator[Any]:
    position = text.index("[") + 1
    for number in itertools.count():
        gap = _SEPARATOR.match(text, position)
        position = gap.end() if gap else position
        if text.startswith("]", position):
            if text[position + 1 :].strip():
                _refuse_cut(path, text, position + 1, number, "something stands behind its end")
            return
        try:
            item, position = _STRICT.raw_decode(text, position)
        except json.JSONDecodeError as error:
            _refuse_cut(path, text, error.pos, number, error.msg)
        except RecursionError:
            _refuse_cut(path, text, position, number, "brackets nested too deep")
        except ValueError as error:
            _, end = _LENIENT.raw_decode(text, position)
            item, position = Bad.of(0, _said(error), text[position : min(end, position + 8192)]), end
        yield item


def _refuse_cut(path: Path, text: str, position: int, num_whole: int, why: str) -> NoReturn:
    raise DataError(
        f"{path} is cut off or damaged at character {position} of {len(text)} ({why}); {num_whole} records are whole "
        "before it: fetch or export the file again"
    )


def _parquet(path: Path) -> Iterator[Any]:
    try:
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            fitting = NUM_BYTES * group.num_rows // max(group.total_byte_size, 1)
            for batch in file.iter_batches(max(1, min(NUM_ROWS, fitting)), row_groups=[number]):
                for index in range(batch.num_rows):
                    yield _parquet_row(batch.slice(index, 1))
    except (pa.ArrowException, ValueError, MemoryError, OverflowError) as error:
        raise DataError(
            f"{path} has {path.stat().st_size} bytes but is no whole Parquet file ({_said(error)}): export it again"
        ) from error


def _parquet_row(row: pa.RecordBatch) -> Any:
    try:
        row.validate(full=True)
        return row.to_pylist()[0]
    except (pa.ArrowException, UnicodeDecodeError, ValueError, OverflowError) as error:
        return Bad.of(0, f"its row cannot be read ({_said(error)})", "")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice")
    return content


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _said(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "brackets nested too deep"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _text_of(content: object) -> str:
    try:
        return json.dumps(content, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return f"({type(content).__name__})"


_STRICT = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number)
_LENIENT = json.JSONDecoder(parse_int=len)
