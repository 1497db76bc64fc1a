"""What a stage depends on and makes, read from `dvc.yaml`, and a fingerprint of its inputs by
content, in DVC's own hashes.

DVC is not asked: a stage is a program that starts a dozen times in a run, and the facts needed are
plain YAML. The hashes are DVC's (MD5 of a file's bytes, of a folder's sorted listing), so that a
fingerprint can be held against an entry of `dvc.lock`.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.plain_yaml import load_yaml, read_yaml

PARAMS_FILE = "params.yaml"


@dataclass(frozen=True, slots=True)
class StageInputs:
    """What a stage declares. Paths are relative to the root. `params` are keys of `params.yaml`
    (`world`, `evaluate.num_samples`), or `other.yaml:key`; a dep that is a whole file of knobs is
    among `deps`."""

    command: str
    deps: tuple[str, ...]
    params: tuple[str, ...]
    outs: tuple[str, ...] = ()

    def covers(self, path: Path) -> bool:
        """Whether a dep is this file or a folder above it; paths are compared as they resolve, so
        `..` and links lead nowhere else."""
        return any(path.resolve().is_relative_to(Path(dep).resolve()) for dep in self.deps)

    @property
    def params_files(self) -> tuple[str, ...]:
        """Those that the knobs stand in, sorted."""
        return tuple(sorted({file_and_key(param)[0] for param in self.params}))


@dataclass(frozen=True, slots=True)
class FileState:
    """`stat` (size, mtime and ctime in ns, inode) lets an untouched file go without being read a
    second time; a file put back with its old time has another ctime."""

    md5: str
    stat: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Content of every input. `digest` depends on names and contents only, never on times."""

    command: str
    files: Mapping[str, FileState]
    params: Mapping[str, str]

    @property
    def digest(self) -> str:
        content = [self.command, {path: state.md5 for path, state in self.files.items()}, dict(self.params)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_stage_inputs(dvc_yaml: Path, name: str, item: str = "") -> StageInputs:
    """What a stage declares; `item` picks one of a `foreach` or `matrix` stage. Raises
    ConfigurationError where there is no such stage."""
    stages = _read_stages(dvc_yaml)
    if name not in stages:
        raise ConfigurationError(f"{dvc_yaml} has no stage {name!r}; a stage's function is named as the stage")
    return _stage_inputs(name, stages[name], item)


def read_all_inputs(dvc_yaml: Path) -> dict[str, StageInputs]:
    """Of every stage, by its name; what only some items of it have is left as the template that it
    is."""
    return {name: _stage_inputs(name, stage, "") for name, stage in _read_stages(dvc_yaml).items()}


def _read_stages(dvc_yaml: Path) -> dict[str, Any]:
    stages: dict[str, Any] = (read_yaml(dvc_yaml) or {}).get("stages", {})
    return stages


def _stage_inputs(name: str, entry: Mapping[str, Any], item: str) -> StageInputs:
    text = json.dumps(entry.get("do", entry))
    if item:
        value = _item_value(entry, item, f"{name}@{item}")
        text = text.replace("${item}", value).replace("${key}", item).replace("${item.policy}", item)
    stage = json.loads(text)
    declared = [
        out if isinstance(out, str) else next(iter(out))
        for kind in ("outs", "metrics", "plots")
        for out in stage.get(kind) or ()
    ]
    params, whole_files = _params_of(stage.get("params") or ())
    inputs = StageInputs(stage["cmd"], (*stage.get("deps", ()), *whole_files), params, tuple(declared))
    for path in (*inputs.deps, *inputs.outs, *inputs.params_files):
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ConfigurationError(
                f"{name} names {path}, which is outside of the tree: it could not be frozen. Copy it in, "
                "or link to it from the tree"
            )
    return inputs


def take_fingerprint(inputs: StageInputs, *, root: Path = Path(), earlier: Fingerprint | None = None) -> Fingerprint:
    """Hash every input below `root`. A file whose size, times and inode equal those in `earlier` is
    taken from there. A missing file counts as empty content."""
    files = file_states(inputs.deps, root, earlier.files if earlier else {})
    texts = {file: (root / file).read_bytes() for file in inputs.params_files}
    return Fingerprint(inputs.command, files, knob_values(inputs, texts))


def file_states(
    paths: Iterable[str], root: Path, known: Mapping[str, FileState] = MappingProxyType({})
) -> dict[str, FileState]:
    """Of the files that the paths are or hold, without what `.dvcignore` names; one that is not
    there is listed itself. `known` as in `state_of`."""
    return {file: state_of(root / file, known.get(file)) for path in paths for file in files_below(root, path)}


def files_below(root: Path, path: str) -> Iterator[str]:
    """The file itself, or all files of the folder as DVC sees them, sorted: links to folders in it
    are not followed. Raises ConfigurationError where a link leads to nothing, which DVC cannot
    hash."""
    found = [path]
    if (root / path).is_dir():
        found = sorted((here / name).as_posix() for here, _, files in _walk(root, path) for name in files)
    for file in found:
        if (root / file).is_symlink() and not os.path.exists(root / file):
            raise ConfigurationError(
                f"{file} is a link that leads nowhere, or to itself: DVC hashes what a link leads to, and finds "
                "nothing. Remove it, put back what it leads to, or name it in .dvcignore"
            )
    yield from found


def links_to_folders(root: Path, paths: Iterable[str]) -> list[str]:
    """Those inside of these folders; what lies behind them is no part of what DVC hashes."""
    found = ((here / name).as_posix() for path in paths for here, folders, _ in _walk(root, path) for name in folders)
    return [path for path in found if (root / path).is_symlink()]


def knob_values(inputs: StageInputs, texts: Mapping[str, bytes]) -> dict[str, str]:
    """Each knob's value as canonical JSON, from the bytes of the files that hold them. Raises
    ConfigurationError where a file is no YAML."""
    contents = {file: load_yaml(text, file) for file, text in texts.items()}
    places = {param: file_and_key(param) for param in inputs.params}
    return {
        param: json.dumps(value_at(contents.get(file), key), sort_keys=True, default=str)
        for param, (file, key) in places.items()
    }


def changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    """What differs, as a person names it: paths, and `params.yaml: key`."""
    paths = sorted(
        path for path in {*before.files, *after.files} if _digest_at(before, path) != _digest_at(after, path)
    )
    keys = sorted(key for key in {*before.params, *after.params} if before.params.get(key) != after.params.get(key))
    return paths + [": ".join(file_and_key(key)) for key in keys]


def refuse_if_changed(inputs: StageInputs, before: Fingerprint, root: Path) -> None:
    """Raises Interrupted where the inputs below `root` are others than they were."""
    if changed := changes(before, take_fingerprint(inputs, root=root, earlier=before)):
        raise Interrupted(
            f"{', '.join(changed)} changed while the stage ran. Its output belongs to the old values, "
            "so it is not accepted under the new ones. "
            "Run `dvc repro` again (or take the edit back first)"
        )


def lock_form(paths: Iterable[str], files: Mapping[str, FileState]) -> list[dict[str, Any]]:
    """Files and folders as `dvc.lock` has them, sorted: `path`, `hash`, `md5`, `size`, and `nfiles`
    of a folder. `files` holds every file; what is none of them is a folder."""
    return [{"path": path, "hash": "md5", **_hashed(path, files)} for path in sorted(set(paths))]


def file_and_key(param: str) -> tuple[str, str]:
    """`("params.yaml", "seed")` of `seed`, `("other.yaml", "seed")` of `other.yaml:seed`."""
    file, colon, key = param.rpartition(":")
    return (file, key) if colon else (PARAMS_FILE, param)


def value_at(content: Any, key: str) -> Any:
    """`content["evaluate"]["num_samples"]` of `evaluate.num_samples`; None where there is
    nothing."""
    for part in key.split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def md5_of(path: Path) -> str:
    """Of the file's bytes, 32 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def folder_md5(md5s: Mapping[str, str]) -> str:
    """DVC's hash of a folder, from its files' by their paths in it: the MD5 of their listing as
    JSON, and `.dir`."""
    listing = json.dumps([{"md5": md5s[path], "relpath": path} for path in sorted(md5s)], sort_keys=True)
    return hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest() + ".dir"


def state_of(path: Path, known: FileState | None = None) -> FileState:
    """Of a file as it is now, read where its size, times or inode are others than in `known`. One
    that is missing has no hash."""
    try:
        stat = stat_of(path.stat())
    except FileNotFoundError:
        return FileState("", (0, 0, 0, 0))
    return known if known and known.stat == stat else FileState(md5_of(path), stat)


def stat_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """As `FileState.stat` has it."""
    return (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def _params_of(declared: Iterable[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Knobs, and files that count whole."""
    params: list[str] = []
    whole_files: list[str] = []
    for entry in declared:
        if isinstance(entry, str):
            params.append(entry)
            continue
        for file, keys in entry.items():
            if keys is None:
                whole_files.append(file)
            elif Path(file).suffix in (".yaml", ".yml", ".json"):
                params += [f"{file}:{key}" for key in keys]
            else:
                raise ConfigurationError(
                    f"{file} holds knobs and is no YAML or JSON: they could not be held against what ran. "
                    "Move them to a YAML file"
                )
    return tuple(params), tuple(whole_files)


def _item_value(stage: Mapping[str, Any], item: str, full_name: str) -> str:
    choices = stage.get("foreach", {})
    if isinstance(choices, Mapping) and item in choices:
        return str(choices[item])
    listed = [str(value) for values in stage.get("matrix", {}).values() for value in values] + (
        list(choices) if isinstance(choices, list) else []
    )
    if item not in listed:
        raise ConfigurationError(f"dvc.yaml has no {full_name}; it lists {', '.join(listed or choices) or 'no items'}")
    return item


def _walk(root: Path, path: str) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder that DVC looks into, relative to the root, with its folders and files."""
    is_ignored = _ignored(root)
    for folder, folders, files in os.walk(root / path):
        here = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if not is_ignored(f"{(here / name).as_posix()}/")]
        yield here, folders, [name for name in files if not is_ignored((here / name).as_posix())]


def _ignored(root: Path) -> Any:
    """Whether DVC leaves a path out; a folder's ends with a slash."""
    from pathspec import GitIgnoreSpec  # DVC's own reader of such patterns

    file = root / ".dvcignore"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return GitIgnoreSpec.from_lines([*lines, ".git/", ".hg/", ".dvc/"]).match_file


def _hashed(path: str, files: Mapping[str, FileState]) -> dict[str, Any]:
    if path in files:
        return {"md5": files[path].md5, "size": files[path].stat[0]}
    below = {file.removeprefix(f"{path}/"): state for file, state in files.items() if file.startswith(f"{path}/")}
    md5 = folder_md5({file: state.md5 for file, state in below.items()})
    return {"md5": md5, "size": sum(state.stat[0] for state in below.values()), "nfiles": len(below)}


def _digest_at(fingerprint: Fingerprint, path: str) -> str | None:
    state = fingerprint.files.get(path)
    return state.md5 if state else None
