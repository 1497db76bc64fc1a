"""Keeps beside the outputs what no two runs agree on: of which commit each was made, when, on what
kind of machine, and what it took.

`reports/runs.jsonl`, a line for each stage, for git to track and for DVC not to know. A line's key
names what the stage read and made, by the MD5s that `dvc.lock` has of it, so that it is of the
entry there or of none; its `knobs` names the command and the knobs. A run is recorded before DVC
hashes anything, so that an entry of `dvc.lock` without a record is one that no run made. Git merges
two of these files by taking the lines of both (`.gitattributes`), and a result that comes back out
of the cache finds its line again.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.provenance.cache_integrity import SETTLED, SETTLED_COSTS, cache_folder, common_cache
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
    """The same, of an entry of `dvc.lock`."""
    parts = [entry.get(part) or () for part in ("deps", "outs")]
    return result_key(*({one["path"]: one["md5"] for one in part if "md5" in one} for part in parts))


def knobs_key(entry: Mapping[str, Any]) -> str:
    """12 hex digits, of the command and the knobs of an entry of `dvc.lock`."""
    text = json.dumps([entry.get("cmd"), entry.get("params") or {}], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def record_run(root: Path, stage: str, entry: Mapping[str, Any], cost: Cost | None) -> None:
    """Of a result that is now in the tree; `entry` is what `dvc.lock` is to say of it. `cost` is
    None where nothing ran for it: then what an earlier run of this tree took, if any made the same.

    A record that is there stays: it is of the run that made this first, and a tree in which the
    same comes out again is as it was. One of an older version learns its knobs; one of a run with
    foreign modules gives way to a run without.
    """
    key, knobs = entry_key(entry), knobs_key(entry)
    if cost is not None:
        cost = keep_cost(root / COSTS, entry, cost)
    records = _read(root)
    known = [records.get((stage, key)), cost, *reversed(_all_costs(root))]
    same = _of_entry(filter(None, known), stage, entry)
    first = min(same, key=lambda one: bool(one.foreign), default=None)
    if first is not None and cost is not None:
        first = replace(first, knobs=knobs)
    kept = {one.stage: one for one in records.values() if one.stage != stage} | ({stage: first} if first else {})
    text = "".join(json.dumps(asdict(kept[name]), sort_keys=True) + "\n" for name in sorted(kept))
    file = root / RECORDS
    if text and (not file.exists() or file.read_text(encoding="utf-8", errors="replace") != text):
        file.parent.mkdir(exist_ok=True)
        replace_file(file, text, is_private=False, root=root)


def keep_cost(file: Path, entry: Mapping[str, Any], cost: Cost) -> Cost:
    """Add a line that says of which entry of `dvc.lock` the cost is; gives what it says."""
    cost = replace(cost, key=entry_key(entry), knobs=knobs_key(entry))
    append_cost(cost, file)
    return cost


def record_restored(root: Path) -> None:
    """Of what `dvc repro` has taken out of its cache, where no process of ours runs."""
    records = _read(root)
    for stage, entry in lock_entries(root).items():
        if (stage, entry_key(entry)) not in records:
            record_run(root, stage, entry, None)


@dataclass(frozen=True, slots=True)
class Unproven:
    """Stages of whose entry in `dvc.lock` not all is known: `unknown` has no record, `foreign` ran
    with modules from elsewhere, by stage; `without_knobs` was recorded by an older version, which
    kept what was read and made, but not the command and the knobs."""

    unknown: tuple[str, ...]
    foreign: Mapping[str, tuple[str, ...]]
    without_knobs: tuple[str, ...]


def unproven(root: Path) -> Unproven:
    """Of the stages that run by `posttrain.provenance`; what a command of another kind read nobody
    records."""
    costs, unknown, without_knobs = all_records(root), [], []
    foreign: dict[str, tuple[str, ...]] = {}
    for stage, entry in lock_entries(root).items():
        if not is_ours(entry):
            continue
        record = find_record(costs, stage, entry)
        if record is None:
            unknown.append(stage)
        elif record.foreign:
            foreign[stage] = record.foreign
        elif not record.knobs:
            without_knobs.append(stage)
    return Unproven(tuple(unknown), foreign, tuple(without_knobs))


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


def is_ours(entry: Mapping[str, Any]) -> bool:
    """Whether the entry's command runs a stage as this library does, so that there is a record."""
    return _COMMAND in str(entry.get("cmd"))


def find_record(costs: Iterable[Cost], stage: str | None, entry: Mapping[str, Any]) -> Cost | None:
    """The first that is of this entry, one without foreign modules and with its knobs before
    others. A run of the run cache knows no name of its stage."""
    return min(_of_entry(costs, stage, entry), key=lambda one: (bool(one.foreign), not one.knobs), default=None)


def _of_entry(costs: Iterable[Cost], stage: str | None, entry: Mapping[str, Any]) -> list[Cost]:
    key, knobs = entry_key(entry), knobs_key(entry)
    return [one for one in costs if one.key == key and one.knobs in ("", knobs) and stage in (None, one.stage)]


def all_records(root: Path) -> list[Cost]:
    """Of the committed runs, of this tree's, and of the settled ones of trees that share its
    cache."""
    return [*_read(root).values(), *_all_costs(root)]


def _all_costs(root: Path) -> list[Cost]:
    return [*read_costs(root), *read_cost_lines(common_cache(cache_folder(root)) / SETTLED / SETTLED_COSTS)]


def _read(root: Path) -> dict[tuple[str, str], Cost]:
    try:
        return parse_records((root / RECORDS).read_bytes())
    except OSError:
        return {}


def _present(root: Path, runs: Mapping[tuple[str, str], Cost]) -> dict[str, Cost]:
    keys = {stage: entry_key(entry) for stage, entry in lock_entries(root).items()}
    return {stage: runs[stage, key] for stage, key in keys.items() if (stage, key) in runs}
