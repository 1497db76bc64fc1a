"""Keeps beside the outputs what no two runs agree on: of which commit each was made, when, on what
kind of machine, and what it took.

`reports/runs.jsonl`, a line for each stage, for git to track and for DVC not to know. A line's key
names what the stage read and made, by the MD5s that `dvc.lock` has of it, so that it is of the
entry there or of none. Git merges two of these files by taking the lines of both
(`.gitattributes`), and a result that comes back out of the cache finds its line again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from posttrain.stage.costs import COSTS, Cost, append_cost, parse_cost, read_costs
from posttrain.stage.lockfile import lock_entries, replace_file

RECORDS = Path("reports/runs.jsonl")
_KEY_DIGITS = 12


def result_key(deps: Mapping[str, str], outs: Mapping[str, str]) -> str:
    """12 hex digits, of the MD5s by path."""
    lines = [f"{path} {md5}" for part in (deps, outs) for path, md5 in sorted(part.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_KEY_DIGITS]


def entry_key(entry: Mapping[str, Any]) -> str:
    """The same, of an entry of `dvc.lock`."""
    parts = [entry.get(part) or () for part in ("deps", "outs")]
    return result_key(*({one["path"]: one["md5"] for one in part if "md5" in one} for part in parts))


def record_run(root: Path, stage: str, key: str, cost: Cost | None) -> None:
    """Of a result that is now in the tree. `cost` is None where nothing ran for it: then what an
    earlier run of this tree took, if any made the same.

    A record that is there stays: it is of the run that made this first, and a tree in which the
    same comes out again is as it was."""
    if cost is not None:
        cost = replace(cost, key=key)
        append_cost(cost, root / COSTS)
    records = _read(root)
    known = [one for one in reversed(read_costs(root)) if (one.stage, one.key) == (stage, key)]
    first = records.get((stage, key)) or cost or next(iter(known), None)
    kept = {one.stage: one for one in records.values() if one.stage != stage} | ({stage: first} if first else {})
    text = "".join(json.dumps(asdict(kept[name]), sort_keys=True) + "\n" for name in sorted(kept))
    file = root / RECORDS
    if text and (not file.exists() or file.read_text(encoding="utf-8", errors="replace") != text):
        file.parent.mkdir(exist_ok=True)
        replace_file(file, text, is_private=False, root=root)


def record_restored(root: Path) -> None:
    """Of what `dvc repro` has taken out of its cache, where no process of ours runs."""
    records = _read(root)
    for stage, entry in lock_entries(root).items():
        if (stage, key := entry_key(entry)) not in records:
            record_run(root, stage, key, None)


def read_records(root: Path) -> dict[str, Cost]:
    """By stage, in the order of `dvc.lock`; only those of what this now says."""
    return _present(root, _read(root))


def read_own_runs(root: Path) -> dict[str, Cost]:
    """The same of the last runs of this tree."""
    return _present(root, {(cost.stage, cost.key): cost for cost in read_costs(root)})


def read_all_records(root: Path) -> dict[str, Cost]:
    """By stage, of this or an earlier `dvc.lock`."""
    return {stage: cost for (stage, _), cost in _read(root).items()}


def parse_records(content: bytes) -> dict[tuple[str, str], Cost]:
    """By stage and key, of the file's content; what is no record is left out."""
    costs = filter(None, map(parse_cost, content.splitlines()))
    return {(cost.stage, cost.key): cost for cost in costs}


def _read(root: Path) -> dict[tuple[str, str], Cost]:
    try:
        return parse_records((root / RECORDS).read_bytes())
    except OSError:
        return {}


def _present(root: Path, runs: Mapping[tuple[str, str], Cost]) -> dict[str, Cost]:
    keys = {stage: entry_key(entry) for stage, entry in lock_entries(root).items()}
    return {stage: runs[stage, key] for stage, key in keys.items() if (stage, key) in runs}
