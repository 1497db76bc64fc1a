"""The files of data behind each setting, and by how many rows they differ from the baseline's.

A commit has their hashes alone. Their rows are counted where DVC's cache on this machine has both
files, which a clone's may not.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from posttrain.provenance.cache_integrity import cache_folder
from posttrain.report.comparison.settings import Setting

_IDS = ("trajectory_id", "task_id")
_MAX_BYTES = 64_000_000  # of a file whose rows are looked at: a page is not waited for
_HASH_DIGITS = 7

Rows = Counter[tuple[str, str]]  # id and digest of each


def data_files(settings: Sequence[Setting]) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each file a cell on every setting: the first digits of its MD5, and by which rows it
    differs from the baseline's, the first setting; nothing where it does not, or nobody can tell. A
    setting's first run stands for it."""
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
def _rows(file: Path) -> Rows | None:
    """Of a file that is named by its content; None where it is too large, or has no rows with an
    id."""
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
