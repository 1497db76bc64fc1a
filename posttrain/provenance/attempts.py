"""Remembers the attempts at one result, so that what a preempted run has used is counted and its
curve can be marked where it was gone on with.

A file beside the checkpoints, which outlives each attempt and goes where they go. A process that is
killed says nothing, so each tells from time to time how long it has worked.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from posttrain.provenance.lockfile import replace_file

ATTEMPTS = "attempts.jsonl"
_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """`seconds`: how long it has worked, as far as it could tell. `first` is what it told first of
    its progress, `(done, total)`: one that goes on begins behind the others' work; None where it
    told nothing."""

    seconds: float = 0.0
    first: tuple[int, int] | None = None


class Attempts:
    """At the result whose checkpoints lie in `folder`; made when one begins, or by a process of
    its own (`is_new=False`)."""

    def __init__(self, folder: Path, *, is_new: bool = True) -> None:
        self._file = folder / ATTEMPTS
        self._began_s = self._told_s = time.monotonic()
        *self._earlier, self._own = [*_read(self._file), *([Attempt()] if is_new else [])] or [Attempt()]
        if is_new:
            self._write()

    def tell(self, done: int, total: int) -> None:
        """It lives, and is so far."""
        now_s = time.monotonic()
        if self._own.first is None:
            self._own = replace(self._own, first=(done, total))
        elif now_s - self._told_s < _EVERY_S:
            return
        self._told_s = now_s
        self._own = replace(self._own, seconds=round(now_s - self._began_s, 1))
        self._write()

    def end(self) -> tuple[float, tuple[int, ...]]:
        """How long the earlier ones took, in seconds, and after which steps they were gone on with;
        the result is there, and the next one is the first at another."""
        if self._file.exists():
            *self._earlier, self._own = _read(self._file) or [self._own]  # as a process of its own has told it
            self._file.unlink()
        following = [*self._earlier[1:], self._own] if self._earlier else []
        totals = {one.first[1] for one in (*self._earlier, self._own) if one.first is not None}
        steps = [one.first[0] - 1 for one in following if one.first is not None] if len(totals) == 1 else []
        return round(sum(one.seconds for one in self._earlier), 1), tuple(step for step in steps if step > 0)

    def _write(self) -> None:
        lines = "".join(json.dumps(asdict(one)) + "\n" for one in (*self._earlier, self._own))
        with contextlib.suppress(OSError):  # nothing depends on it
            replace_file(self._file, lines)


def _read(file: Path) -> list[Attempt]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [attempt for line in lines for attempt in _parsed(line)]


def _parsed(line: str) -> Iterator[Attempt]:
    with contextlib.suppress(ValueError, TypeError, LookupError):
        found = json.loads(line)
        first = None if found["first"] is None else (int(found["first"][0]), int(found["first"][1]))
        yield Attempt(float(found["seconds"]), first)
