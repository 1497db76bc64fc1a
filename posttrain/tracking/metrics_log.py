"""Metrics log: one JSON object a line for each step, on the disk before any sink gets it.

`metrics.jsonl` is the record; every other tracker is a sink that may be absent. A sink also gets
the lines restored from a checkpoint, so that a resumed run has its whole curve there too. Lines
hold no time and no host: two runs of one configuration write the same bytes. A line at which an
alarm was raised (`alarms.py`) names it.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from posttrain.runtime.exits import DataError
from posttrain.runtime.redaction import redact
from posttrain.tracking.alarms import KEY, Alarms

_REMEDY = "run the stage that wrote it again (`dvc repro`), or `dvc checkout` it"
MetricValue = float | int | str | None


class Sink(Protocol):
    """Another tracker of the metrics."""

    def write(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        """Take one line of `metrics.jsonl`; `step` never falls."""
        ...

    def close(self) -> None: ...


class MetricsLog:
    """A `metrics.jsonl` being written; use as a context manager. It begins with the lines
    `earlier`, newlines included. `alarms` observe all lines and act on new ones only."""

    def __init__(
        self, path: Path, *, sinks: Sequence[Sink] = (), earlier: str = "", alarms: Alarms | None = None
    ) -> None:
        self.path = path
        self._sinks, self._alarms = tuple(sinks), alarms
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._file.write(earlier)
        self._file.flush()
        for line in map(json.loads, earlier.splitlines()):
            if alarms is not None:
                alarms.observe(line)
            self._send(line)

    def write(self, step: int, metrics: Mapping[str, MetricValue], *, is_new: bool = True) -> None:
        """Append `{"step": step, **metrics}`. NaN and infinity, which JSON has not, become null;
        texts are without keys. Raises StoppedByAlarm, with the line on the disk, where an alarm is
        to stop the training; none acts on a line that is not new."""
        line = {**{name: _kept(value) for name, value in metrics.items()}, "step": step}
        raised = self._alarms.observe(line) if self._alarms is not None else []
        if raised:
            line[KEY] = " ".join(alarm.name for alarm in raised)
        self._file.write(json.dumps(line, ensure_ascii=False, sort_keys=True, allow_nan=False) + "\n")
        self._file.flush()
        self._send(line)
        if self._alarms is not None and is_new:
            self._alarms.act(raised)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a line that `write` could not flush, and raised about
            self._file.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, line: Mapping[str, MetricValue]) -> None:
        for sink in self._sinks:
            sink.write(int(line["step"] or 0), {name: value for name, value in line.items() if name != "step"})


def read_metrics(path: Path) -> list[dict[str, MetricValue]]:
    """The lines of a `metrics.jsonl`. Raises DataError where it is absent or one is damaged."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {_REMEDY}") from error
    return [_metrics(path, number, line) for number, line in enumerate(lines, start=1)]


def _metrics(path: Path, number: int, line: bytes) -> dict[str, MetricValue]:
    try:
        metrics = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number} is damaged or cut off ({error}): {_REMEDY}") from error
    if not isinstance(metrics, dict) or not isinstance(metrics.get("step"), int):
        raise DataError(f"{path}, line {number} is no object with a step: {_REMEDY}")
    return metrics


def _kept(value: MetricValue) -> MetricValue:
    if isinstance(value, str):
        return redact(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
