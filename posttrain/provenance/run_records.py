"""Records of the runs that made the present outputs: of which commit, when, on what kind of
machine, at what cost. No two runs agree on these, so they are no part of an output.

`reports/runs.jsonl`, a line for each stage, for git to track and for DVC not to know. A line's key
names what the stage read and made, by the MD5s in `dvc.lock`, so that it belongs to the entry there
or to none; its `knobs` names the command and the knobs. A run is recorded before DVC hashes
anything, so an entry of `dvc.lock` without a record is one that no run made. Git merges two of
these files by taking the lines of both (`.gitattributes`), and a result that comes back out of the
cache finds its line again.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from posttrain.provenance.cache_integrity import VERIFIED, VERIFIED_COSTS, cache_folder, common_cache
from posttrain.provenance.costs import COSTS, Cost, append_cost, parse_cost, read_cost_lines, read_costs
from posttrain.provenance.lockfile import lock_entries, replace_file

RECORDS = Path("reports/runs.jsonl")
_KEY_DIGITS = 12
_COMMAND = "posttrain.provenance.run_stage "


def result_key(deps: Mapping[str, str], outs: Mapping[str, str]) -> str:
    """12 hex digits, of the MD5s by path."""
    lines = [f"{path} {md5}" for part in (deps, outs) for path, md5 in sorted(part.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_KEY_DIGITS]


def entry_key(entry: Mapping[str, Any]) -> str:
    """`result_key` of an entry of `dvc.lock`."""
    parts = [entry.get(part) or () for part in ("deps", "outs")]
    return result_key(*({one["path"]: one["md5"] for one in part if "md5" in one} for part in parts))


def knobs_key(entry: Mapping[str, Any]) -> str:
    """12 hex digits, of the command and the knobs of an entry of `dvc.lock`."""
    text = json.dumps([entry.get("cmd"), entry.get("params") or {}], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def record_run(root: Path, stage: str, entry: Mapping[str, Any], cost: Cost | None) -> None:
    """Record the run that made the result in the tree, whose entry in `dvc.lock` is `entry`;
    without a `cost`, nothing ran, and an earlier run's record counts. A record that is there
    stays."""
    if cost is not None:
        cost = keep_cost(root / COSTS, entry, cost)
    records = _read(root)
    # The newest cost first, so that the record is of the last run with these outputs.
    known = [records.get((stage, entry_key(entry))), cost, *reversed(_all_costs(root))]
    first = find_record(filter(None, known), stage, entry)
    kept = {one.stage: one for one in records.values() if one.stage != stage} | ({stage: first} if first else {})
    text = "".join(json.dumps(asdict(kept[name]), sort_keys=True) + "\n" for name in sorted(kept))
    file = root / RECORDS
    if text and (not file.exists() or file.read_text(encoding="utf-8", errors="replace") != text):
        file.parent.mkdir(exist_ok=True)
        replace_file(file, text, is_private=False, root=root)


def keep_cost(file: Path, entry: Mapping[str, Any], cost: Cost) -> Cost:
    """Add a line for a cost with the keys of its entry in `dvc.lock`; gives the cost with them."""
    cost = replace(cost, key=entry_key(entry), knobs=knobs_key(entry))
    append_cost(cost, file)
    return cost


def record_restored(root: Path) -> None:
    """Record the runs of results that `dvc repro` took from its cache, with no process of ours."""
    records = _read(root)
    for stage, entry in lock_entries(root).items():
        if (stage, entry_key(entry)) not in records:
            record_run(root, stage, entry, None)


def unproven(root: Path) -> list[str]:
    """Stages of ours whose entry in `dvc.lock` no recorded run made."""
    costs, entries = all_records(root), lock_entries(root).items()
    return [stage for stage, entry in entries if is_ours(entry) and find_record(costs, stage, entry) is None]


def read_records(root: Path) -> dict[str, Cost]:
    """Records of the present results by stage, in the order of `dvc.lock`."""
    return _present(root, _read(root))


def read_own_runs(root: Path) -> dict[str, Cost]:
    """Runs of this tree that made the present results, by stage."""
    return _present(root, {(cost.stage, cost.key): cost for cost in read_costs(root)})


def read_all_records(root: Path) -> dict[str, Cost]:
    """Records by stage, of this or an earlier `dvc.lock`."""
    return {stage: cost for (stage, _), cost in _read(root).items()}


def parse_records(content: bytes) -> dict[tuple[str, str], Cost]:
    """Records by stage and key in the file's content; a line that is none is left out."""
    costs = filter(None, map(parse_cost, content.splitlines()))
    # After a merge a stage may have two lines; their keys differ.
    return {(cost.stage, cost.key): cost for cost in costs}


def is_ours(entry: Mapping[str, Any]) -> bool:
    """True if the entry's command runs a stage as this library does, so that there is a record."""
    return _COMMAND in str(entry.get("cmd"))


def find_record(costs: Iterable[Cost], stage: str | None, entry: Mapping[str, Any]) -> Cost | None:
    """First record of this entry. A run of the run cache has no name of its stage (None)."""
    key, knobs = entry_key(entry), knobs_key(entry)
    same = (one for one in costs if one.key == key and one.knobs == knobs and stage in (None, one.stage))
    return next(same, None)


def all_records(root: Path) -> list[Cost]:
    """Records that are committed, of this tree, and verified by trees that share its cache."""
    return [*_read(root).values(), *_all_costs(root)]


def _all_costs(root: Path) -> list[Cost]:
    return [*read_costs(root), *read_cost_lines(common_cache(cache_folder(root)) / VERIFIED / VERIFIED_COSTS)]


def _read(root: Path) -> dict[tuple[str, str], Cost]:
    try:
        return parse_records((root / RECORDS).read_bytes())
    except OSError:
        return {}


def _present(root: Path, runs: Mapping[tuple[str, str], Cost]) -> dict[str, Cost]:
    keys = {stage: entry_key(entry) for stage, entry in lock_entries(root).items()}
    return {stage: runs[stage, key] for stage, key in keys.items() if (stage, key) in runs}
