"""Reads the samples of an Inspect log (`.eval`, a zip archive) one by one, each up to the size in
the archive's directory, so that no archive fills the memory.

Entries are decompressed here, because zipfile reads Inspect's Zstandard only from Python 3.14 on.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import MAX_LINE_BYTES

_MAX_UNPACKED_BYTES = 2**34  # of all samples of a log
_ZSTANDARD = 93  # as zip files name it
_LOCAL_HEADER = struct.Struct("<26xHH")  # of an entry in a zip file; its name and extra fields follow


def read_archive(raw: IO[bytes]) -> tuple[dict[str, Any], Iterator[Any]]:
    """A log's header, and its samples while the file is open. That of a run which was killed has
    the status `killed`. Raises ValueError for what is damaged, or too large."""
    with zipfile.ZipFile(raw) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    samples = [entry for name, entry in entries.items() if name.startswith("samples/")]
    if (size := sum(entry.file_size for entry in samples)) > _MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to {size:,} bytes, more than {_MAX_UNPACKED_BYTES:,}")
    is_killed = "header.json" not in entries
    header = json.loads(_unpacked(raw, entries["_journal/start.json" if is_killed else "header.json"]))
    if is_killed:
        header["status"] = "killed"
    return header, (json.loads(_unpacked(raw, entry)) for entry in samples)


def _unpacked(raw: IO[bytes], entry: zipfile.ZipInfo) -> bytes:
    """Content of an entry, by any compression. Raises ValueError where it is damaged or too
    large."""
    if max(entry.file_size, entry.compress_size) > MAX_LINE_BYTES:
        raise ValueError(f"{entry.filename} is larger than {MAX_LINE_BYTES:,} bytes")
    raw.seek(entry.header_offset)
    header = raw.read(_LOCAL_HEADER.size)
    *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    raw.seek(name_size + extra_size, 1)
    content = _decompressed(raw.read(entry.compress_size), entry)
    if len(content) != entry.file_size or zlib.crc32(content) != entry.CRC:
        raise ValueError(f"{entry.filename} is not what its archive says it is")
    return content


def _decompressed(packed: bytes, entry: zipfile.ZipInfo) -> bytes:
    if entry.compress_type == zipfile.ZIP_STORED:
        return packed
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, entry.file_size + 1)  # 0 were no limit
    if entry.compress_type != _ZSTANDARD:
        raise ValueError(f"{entry.filename} is compressed in a way that is not known here ({entry.compress_type})")
    try:
        import zstandard
    except ImportError as error:
        raise ConfigurationError("this log is compressed by Zstandard: `pip install zstandard` to read it") from error
    try:
        # whatever size the packed says that it has
        return bytes(zstandard.ZstdDecompressor().stream_reader(packed).read(entry.file_size + 1))
    except zstandard.ZstdError as error:
        raise ValueError(f"{entry.filename}: {error}") from error
