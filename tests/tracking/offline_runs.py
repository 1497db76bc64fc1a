"""Reads the folders of offline W&B runs back, with wandb's own definition of their records."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class OfflineRun:
    """`metrics` are the definitions by name or pattern; `run` is wandb's RunRecord."""

    folder: Path
    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    alerts: list[tuple[str, str]] = field(default_factory=list)
    exit_code: int | None = None

    def table(self, key: str) -> list[list[Any]]:
        """The rows of the table that was logged under the key."""
        shown = next(line[key] for line in self.history if key in line)
        return json.loads((self.folder / "files" / shown["path"]).read_text(encoding="utf-8"))["data"]


def offline_runs(folder: Path) -> list[OfflineRun]:
    """All below `folder`/wandb, the oldest first."""
    return [_read(file) for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def _read(file: Path) -> OfflineRun:
    found = OfflineRun(file.parent)
    for record in _records(file):
        match record.WhichOneof("record_type"):
            case "run":
                found.run = record.run
                found.config = {one.key: json.loads(one.value_json) for one in record.run.config.update}
            case "history":
                found.history.append(_values(record.history.item))
            case "summary":
                found.summary |= _values(record.summary.update)
            case "metric":
                found.metrics[record.metric.name or record.metric.glob_name] = record.metric
            case "alert":
                found.alerts.append((record.alert.title, record.alert.text))
            case "exit":
                found.exit_code = record.exit.exit_code
    return found


def _values(items: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        *path, last = item.nested_key or [item.key]
        place = values
        for name in path:
            place = place.setdefault(name, {})
        place[last] = json.loads(item.value_json)
    return values


def _records(file: Path) -> Iterator[Any]:
    """Records of a LevelDB log: 32 KiB blocks of (crc 4, length 2, type 1) headers, after 7 bytes
    of wandb's own."""
    from wandb.proto import wandb_internal_pb2

    content, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left_in_block = 32768 - place % 32768
        if left_in_block < 7:
            place += left_in_block
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record
