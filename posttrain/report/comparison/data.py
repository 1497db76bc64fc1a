"""Compares the data of settings: rows from stage to stage, classes that training saw, and by how
many rows a file differs from the baseline's.

A commit has the hashes of its files alone. Their rows are counted where DVC's cache on this machine
has both files, which a clone's may not. A setting's first run stands for it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from posttrain.provenance.cache_integrity import cache_folder
from posttrain.report.comparison.runs import RunResults
from posttrain.report.comparison.settings import Setting

RowCounts = list[tuple[str, list[int | None]]]

_RESAMPLED = {
    "after the quality filter": "num_after_quality",
    "in the coreset": "num_after_coreset",
    "regenerated through the world": "num_realised",
    "repeated": "num_duplicated",
    "that training saw": "num_after",
}
_IDS = ("trajectory_id", "task_id")
_MAX_BYTES = 64_000_000  # of a file whose rows are compared: a page must not wait for them
_HASH_DIGITS = 7


def row_counts(settings: Sequence[Setting]) -> RowCounts:
    """Number of rows at each step in every setting, None where a branch does not say; without the
    steps of which no branch says any."""
    runs = [setting.runs[0] for setting in settings]
    rules = dict.fromkeys(rule for run in runs for rule in _quarantined(run))
    rows = [
        ("demonstrations", [getattr(run.validation, "num_demonstrations", None) for run in runs]),
        ("kept by validation", [getattr(run.validation, "num_kept", None) for run in runs]),
        *((f"in quarantine by {rule}", [_quarantined(run).get(rule) for run in runs]) for rule in rules),
        *((title, [getattr(run.resampling, field, None) for run in runs]) for title, field in _RESAMPLED.items()),
    ]
    return [(name, counts) for name, counts in rows if any(count is not None for count in counts)]


def class_counts(settings: Sequence[Setting]) -> RowCounts:
    """Rows of each class that training saw, the most frequent of the baseline first."""
    cells = [setting.runs[0].resampling.cells if setting.runs[0].resampling else {} for setting in settings]
    names = dict.fromkeys(name for one in cells for name in one)
    rows = [(name, [one[name].after if name in one else None for one in cells]) for name in names]
    return sorted(rows, key=lambda row: (-(row[1][0] or 0), row[0]))


def _quarantined(run: RunResults) -> dict[str, int]:
    return run.validation.quarantined_by_rule if run.validation else {}


def data_files(settings: Sequence[Setting]) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each file a cell on every setting: the first digits of its MD5, and by which rows it
    differs from the baseline's; empty where it does not, or the cache lacks a file."""
    root = settings[0].runs[0].root
    cache = None if root is None else cache_folder(root)
    runs = [setting.runs[0].data for setting in settings]
    paths = sorted({path for data in runs for path in data})
    return [
        (path, [(data.get(path, "")[:_HASH_DIGITS], _rows_that_differ(runs[0], data, path, cache)) for data in runs])
        for path in paths
    ]


def _rows_that_differ(before: Mapping[str, str], after: Mapping[str, str], path: str, cache: Path | None) -> str:
    first, second = before.get(path), after.get(path)
    if cache is None or first is None or second is None or first == second:
        return ""
    files = [cache / "files" / "md5" / md5[:2] / md5[2:] for md5 in (first, second)]
    if not all(file.is_file() for file in files):
        return ""
    old, new = map(_rows, files)
    if old is None or new is None:
        return ""
    old_ids, new_ids = ({name for name, _ in rows} for rows in (old, new))
    added = sum(number for (name, _), number in new.items() if name not in old_ids)
    removed = sum(number for (name, _), number in old.items() if name not in new_ids)
    changed = len({name for name, _ in (old - new) + (new - old)} & old_ids & new_ids)
    return f"{added:,} added, {removed:,} removed, {changed:,} changed"


@lru_cache(maxsize=64)
def _rows(file: Path) -> Counter[tuple[str, str]] | None:
    """Ids and digests of a file's rows; None where it is too large, or has no rows with an id.
    Cached, because the file is named by its content."""
    try:
        if file.stat().st_size > _MAX_BYTES:
            return None
        import pyarrow.parquet as pq

        table = pq.read_table(file)
    except (OSError, ValueError):
        return None
    name = next((one for one in _IDS if one in table.column_names), None)
    if name is None:
        return None
    return Counter((str(row[name]), _digest(row)) for batch in table.to_batches() for row in batch.to_pylist())


def _digest(row: object) -> str:
    return hashlib.md5(json.dumps(row, sort_keys=True, default=str).encode(), usedforsecurity=False).hexdigest()
