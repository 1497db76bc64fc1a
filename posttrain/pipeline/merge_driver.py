"""Git merge driver for the files of a run: `dvc.lock` stage by stage, knobs line by line, outputs
whole.

git gives a merge driver three texts of one file, and neither the commits that are merged nor the
other files. So the merged tree is inferred from the three `dvc.lock` themselves: they name the hash
of every input and the value of every knob. An entry is taken whole or dropped, never put together,
and so is always of one run. DVC compares it with the tree: where the inference is wrong a stage
runs again, and that is all.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from posttrain.pipeline.git import file_at, git
from posttrain.provenance.fingerprint import md5_of
from posttrain.provenance.lockfile import LOCK, read_entries
from posttrain.runtime.exits import DataError
from posttrain.runtime.plain_yaml import check_bounds

Entries: TypeAlias = Mapping[str, Mapping[str, Any]]
Facts: TypeAlias = dict[tuple[str, str], Any]  # by kind (cmd, dep, knob, out) and name: hash, value or command

_ABSENT, _BOTH = object(), object()  # there is no such thing; both sides changed it, and not alike


def merge_file(path: str, base: Path, ours: Path, theirs: Path, log: Callable[[str], None]) -> bool:
    """Merge into `ours`; False where git's own merge of the three texts has to follow. `path` is
    the file's in the tree; the three are copies of git's."""
    if Path(path).name != LOCK and Path(path).suffix != ".yaml":
        if _recorded(Path()).get(path) == md5_of(theirs):
            shutil.copyfile(theirs, ours)
        return True  # an output: a mix of two would be of no run
    texts = (_text(base), _text(ours), _text(theirs))
    if Path(path).name == LOCK:
        ours.write_text(merge_lock(*texts, log=log), encoding="utf-8")
        return True
    unified = dict(zip((base, ours, theirs), unify_lines(*texts), strict=True))
    for file in (ours, theirs, base):  # cut short in this order, git still merges what was meant
        file.write_bytes(unified[file].encode(errors="surrogateescape"))
    return False


def merge_lock(base: str, ours: str, theirs: str, *, log: Callable[[str], None]) -> str:
    """Merge three texts of `dvc.lock`, in DVC's form. A side that is damaged counts as unchanged.
    Raises DataError where there is more in it than stages, or a circle of stages."""
    from dvc.utils.serialize import dumps_yaml

    before = read_entries(base) or {}
    sides = []
    for side, text in (("ours", ours), ("theirs", theirs)):
        entries = read_entries(text)
        if entries is None:
            log(f"{LOCK} ({side}) is damaged and nothing of it is taken: `dvc repro` runs what is missing")
        elif found := re.search(r"^(?!schema:|stages:)\w+", text, re.MULTILINE):
            raise DataError(f"{LOCK} ({side}) has {found[0]!r} beside stages: git merges the file line by line")
        sides.append(before if entries is None else entries)
    merged: str = dumps_yaml({"schema": "2.0", "stages": merge_entries(before, *sides)})
    return merged


def merge_entries(base: Entries, ours: Entries, theirs: Entries) -> Entries:
    """Choose for each stage the entry with the merged command, inputs and knobs: ours before
    theirs, and none where neither has them, or where one side has removed it.

    Outputs of other stages have the hashes of their merged entries. A knob that both sides have
    changed is taken as ours until a person has decided. Raises DataError where both sides together
    read each other's outputs in a circle.
    """
    locks = (base, ours, theirs)
    elsewhere = [{key: value for entry in lock.values() for key, value in _inputs(entry).items()} for lock in locks]
    merged: dict[str, Mapping[str, Any]] = {}
    made: dict[str, str | None] = {}
    for name in _upstream_first({**theirs, **ours}):
        candidates = [lock[name] for lock in (ours, theirs) if name in lock]
        # Inputs of a side without this stage stand in its other entries.
        versions = [_facts(lock[name]) if name in lock else known for lock, known in zip(locks, elsewhere, strict=True)]
        wanted = {}
        for kind, about in {key for entry in candidates for key in _facts(entry)}:
            values = [facts.get((kind, about), _ABSENT) for facts in versions]
            value = _three_way(*values)  # of a dep that both changed none of the candidates is chosen
            if value is _BOTH and kind != "dep":
                value = values[1]
            if value is not _ABSENT:
                wanted[kind, about] = made.get(about, value) if kind == "dep" else value
        chosen = next((entry for entry in candidates if _facts(entry) == wanted), None)
        if chosen is not None:
            merged[name] = chosen
            made |= _outs([chosen])
    return {name: merged[name] for name in (*ours, *theirs) if name in merged}


def unify_lines(base: str, ours: str, theirs: str) -> tuple[str, str, str]:
    """Three texts of a YAML file in which each line `key: value` that one side alone has changed
    has that side's text in all three, so that git sees no conflict between neighbours. A text that
    is no YAML leaves all as they are."""
    texts = (base, ours, theirs)
    try:
        for version in texts:
            check_bounds(version)
        places = [dict(_lines_of_keys(yaml.compose(text, yaml.SafeLoader))) for text in texts]
    except ValueError:
        return texts
    lines = [text.splitlines(keepends=True) for text in texts]
    for key in places[0].keys() & places[1].keys() & places[2].keys():
        versions = [text[place[key]] for text, place in zip(lines, places, strict=True)]
        line = _three_way(*versions)
        if line is not _BOTH:
            for text, place in zip(lines, places, strict=True):
                text[place[key]] = line
    unified_base, unified_ours, unified_theirs = map("".join, lines)
    return unified_base, unified_ours, unified_theirs


def _recorded(root: Path) -> dict[str, str | None]:
    """The hash of each output in the `dvc.lock` that this merge will give. Empty in a cherry-pick,
    whose commit git does not tell."""
    heads = [name.removeprefix("GITHEAD_") for name in os.environ if name.startswith("GITHEAD_")]
    done = root / git(root, "rev-parse", "--git-path", "rebase-merge/done")
    picked = re.findall(r"^\w+ ([0-9a-f]{7,})", done.read_text(), re.MULTILINE) if done.exists() else []
    if len(heads) == 1:
        commits = [git(root, "merge-base", "HEAD", *heads), "HEAD", *heads]
    elif picked:
        commits = [f"{picked[-1]}^", "HEAD", picked[-1]]
    else:
        return {}
    base, ours, theirs = (read_entries(file_at(root, commit, LOCK) or "") or {} for commit in commits)
    return _outs(merge_entries(base, ours, theirs).values())


def _text(file: Path) -> str:
    return file.read_bytes().decode(errors="surrogateescape")


def _three_way(base: Any, ours: Any, theirs: Any) -> Any:
    if ours == theirs or base == theirs:
        return ours
    return theirs if base == ours else _BOTH


def _facts(entry: Mapping[str, Any]) -> Facts:
    """Command, inputs, knobs and paths of outputs, by which DVC takes the entry for the stage as it
    is."""
    return _inputs(entry) | {("cmd", ""): entry["cmd"]} | {("out", path): "" for path in _outs([entry])}


def _outs(entries: Iterable[Mapping[str, Any]]) -> dict[str, str | None]:
    return {out["path"]: out.get("md5") for entry in entries for out in entry.get("outs") or ()}


def _inputs(entry: Mapping[str, Any]) -> Facts:
    deps: Facts = {("dep", dep["path"]): dep.get("md5") for dep in entry.get("deps") or ()}
    return deps | {("knob", key): value for key, value in _leaves(entry.get("params") or {})}


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """A section that is recorded whole and a key of it that is recorded alone have the same
    names."""
    if isinstance(value, Mapping):
        for part, inner in value.items():
            yield from _leaves(inner, f"{key}.{part}")
    else:
        yield key, value


def _upstream_first(entries: Entries) -> Iterator[str]:
    maker = {path: name for name, entry in entries.items() for path in _outs([entry])}
    reads = {
        name: [maker[dep["path"]] for dep in entry.get("deps") or () if dep["path"] in maker]
        for name, entry in entries.items()
    }
    try:
        yield from TopologicalSorter(reads).static_order()
    except CycleError as error:
        circle = " → ".join(map(str, error.args[1]))
        raise DataError(f"{LOCK} of both sides has a circle, {circle}: git merges it line by line") from error


def _lines_of_keys(node: yaml.Node | None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Lines of the keys in block mappings whose value ends where it begins, on their own line."""
    if not isinstance(node, yaml.MappingNode):
        return
    for name, value in node.value:
        is_alias = value.start_mark.index < name.end_mark.index
        if is_alias or not isinstance(name, yaml.ScalarNode):
            continue
        if isinstance(value, yaml.ScalarNode) or value.flow_style:
            if value.end_mark.line == name.start_mark.line:
                yield (*path, name.value), name.start_mark.line
        else:
            yield from _lines_of_keys(value, (*path, name.value))
