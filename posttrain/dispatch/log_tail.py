"""Follows a growing log file: each line once."""

from collections.abc import Iterator
from pathlib import Path


class LogTail:
    """Follows a log that may not be there yet. Bytes that are no UTF-8 become replacement
    characters, progress bars the lines that they draw over."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def new_lines(self, *, is_whole: bool) -> Iterator[str]:
        """Lines added since the last call, without empty ones; with `is_whole` the last one too,
        though no newline ends it."""
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._offset)
                added = log.read()
            self._offset += len(added)
            *lines, self._rest = (self._rest + added).replace(b"\r", b"\n").split(b"\n")
            lines += [self._rest] if is_whole else []
            yield from (line.decode(errors="replace").rstrip() for line in lines if line.strip())
