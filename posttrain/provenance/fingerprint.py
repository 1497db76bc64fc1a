"""Inputs and outputs of a stage as `dvc.yaml` declares them, and the fingerprint of its inputs: the
hash of every file and the value of every knob, as `dvc.lock` has them.

DVC is not asked: a stage is a program that starts a dozen times in a run, and the facts needed are
plain YAML. The hashes are DVC's (MD5 of a file's bytes, of a folder's sorted listing), so that a
fingerprint can be compared with an entry of `dvc.lock`.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.plain_yaml import check_bounds, load_yaml, read_yaml

PARAMS_FILE = "params.yaml"
_MAX_VALUES = 1_000_000  # of a `dvc.lock` of thousands of stages


@dataclass(frozen=True, slots=True)
class StageInputs:
    """Declaration of a stage. Paths are relative to the root. `params` are keys of `params.yaml`
    (`world`, `evaluate.num_samples`), or `other.yaml:key`."""

    command: str
    deps: tuple[str, ...]
    params: tuple[str, ...]
    outs: tuple[str, ...] = ()

    def covers(self, path: Path) -> bool:
        """True if a dep is this file or a folder above it; paths are compared as they resolve, so
        `..` and links lead nowhere else."""
        return any(path.resolve().is_relative_to(Path(dep).resolve()) for dep in self.deps)

    @property
    def params_files(self) -> tuple[str, ...]:
        """Files that hold the knobs, sorted."""
        return tuple(sorted({file_and_key(param)[0] for param in self.params}))


@dataclass(frozen=True, slots=True)
class FileState:
    """MD5 and `stat` (size, mtime and ctime in ns, inode) of a file: an untouched file is not read
    a second time; a file put back with its old time has another ctime."""

    md5: str
    stat: tuple[int, int, int, int]


MISSING = FileState("", (0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Content of every input. `params` are values by file and key, as DVC reads them."""

    inputs: StageInputs
    files: Mapping[str, FileState]
    params: Mapping[str, Mapping[str, Any]]

    @property
    def entry(self) -> dict[str, Any]:
        """`cmd`, `deps` and `params` of the stage's entry in `dvc.lock`."""
        deps = lock_form(self.inputs.deps, self.files)
        return {"cmd": self.inputs.command, "deps": deps, "params": dict(self.params)}

    @property
    def key(self) -> str:
        """Cache key of the inputs: of names and contents only, never of times."""
        return cache_key(self.entry)

    def contents(self) -> dict[str, str]:
        """MD5 of each file, and the value as JSON of each knob by `file:key`."""
        knobs = {
            f"{file}:{key}": json.dumps(value, sort_keys=True, default=str)
            for file, values in self.params.items()
            for key, value in values.items()
        }
        return {path: state.md5 for path, state in self.files.items()} | knobs


def cache_key(entry: Mapping[str, Any]) -> str:
    """Cache key of a stage's inputs: 64 hex digits of command, deps and params of its entry in
    `dvc.lock`, equal wherever these are equal. Names checkpoints, jobs and their locks."""
    content = {name: entry[name] for name in ("cmd", "deps", "params") if entry.get(name)}
    # A date of YAML is no JSON, so its text counts.
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def read_stage_inputs(dvc_yaml: Path, name: str, item: str = "") -> StageInputs:
    """Declaration of a stage, or of one `item` of a `foreach` or `matrix` stage."""
    stages = _read_stages(dvc_yaml)
    if name not in stages:
        raise ConfigurationError(f"{dvc_yaml} has no stage {name!r}; a stage's function is named as the stage")
    return _stage_inputs(name, stages[name], item)


def read_all_inputs(dvc_yaml: Path) -> dict[str, StageInputs]:
    """Declarations of all stages by name; of a stage with items, its template."""
    return {name: _stage_inputs(name, stage, "") for name, stage in _read_stages(dvc_yaml).items()}


def take_fingerprint(inputs: StageInputs, *, root: Path = Path(), earlier: Fingerprint | None = None) -> Fingerprint:
    """Hash every input below `root`. A file whose size, times and inode equal those in `earlier` is
    taken from there. A missing file counts as empty content."""
    files = file_states(inputs.deps, root, earlier.files if earlier else {})
    texts = {file: (root / file).read_bytes() for file in inputs.params_files}
    return Fingerprint(inputs, files, knob_values(inputs, texts))


def changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    """Paths and knobs (`params.yaml:seed`) that differ."""
    return sorted({name for name, _ in before.contents().items() ^ after.contents().items()})


def refuse_if_changed(before: Fingerprint, root: Path) -> None:
    """Raises Interrupted where the inputs below `root` differ from the fingerprint."""
    if changed := changes(before, take_fingerprint(before.inputs, root=root, earlier=before)):
        raise Interrupted(
            f"{', '.join(changed)} changed while the stage ran. Its output belongs to the old values, "
            "so it is not accepted under the new ones. Run `dvc repro` again (or take the edit back first)"
        )


def knob_values(inputs: StageInputs, texts: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Values of the knobs by file and key. Raises ConfigurationError where a file is no YAML."""
    for file, text in texts.items():
        load_yaml(
            text, file, only_decimal=True
        )  # refuses with file and line, and a number that YAML 1.1 and 1.2 read otherwise
    keys: dict[str, list[str]] = {file: [] for file in texts}
    for file, key in map(file_and_key, inputs.params):
        keys[file].append(key)
    return {file: knobs_as_dvc(texts[file].decode("utf-8-sig"), keys[file]) for file in texts}


def knobs_as_dvc(text: str, keys: Iterable[str]) -> dict[str, Any]:
    """Values of knobs in a file's text, as `dvc.lock` has them."""
    content = load_as_dvc(text)
    return {key: value_at(content, key) for key in keys}


def load_as_dvc(text: str) -> Any:
    """Load YAML 1.2 by DVC's reader: PyYAML takes `5e-05`, as DVC writes it, for a string. Raises
    ValueError for no YAML, or beyond a bound of `plain_yaml`."""
    try:
        check_bounds(text, max_values=_MAX_VALUES)
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from error


def file_and_key(param: str) -> tuple[str, str]:
    """`("params.yaml", "seed")` of `seed`, `("other.yaml", "seed")` of `other.yaml:seed`."""
    file, colon, key = param.rpartition(":")
    return (file, key) if colon else (PARAMS_FILE, param)


def value_at(content: Any, key: str) -> Any:
    """`content["evaluate"]["num_samples"]` of `evaluate.num_samples`; None where nothing is."""
    for part in key.split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def file_states(
    paths: Iterable[str], root: Path, known: Mapping[str, FileState] = MappingProxyType({})
) -> dict[str, FileState]:
    """States of the files that the paths are or hold, without those in `.dvcignore`; a path that is
    not there is listed as missing. `known` as in `state_of`."""
    return {file: state_of(root / file, known.get(file)) for path in paths for file in files_below(root, path)}


def state_of(path: Path, known: FileState | None = None) -> FileState:
    """State of a file now; one with the `stat` of `known` is not read."""
    try:
        stat = stat_of(path.stat())
    except FileNotFoundError:
        return MISSING
    return known if known and known.stat == stat else FileState(md5_of(path), stat)


def stat_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """`FileState.stat` of a file."""
    return (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def files_below(root: Path, path: str) -> Iterator[str]:
    """The file itself, or all files of the folder, sorted; links to folders are not followed."""
    found = [path]
    if (root / path).is_dir():
        found = sorted((here / name).as_posix() for here, _, files in _walk(root, path) for name in files)
    yield from found


def lock_form(paths: Iterable[str], files: Mapping[str, FileState]) -> list[dict[str, Any]]:
    """Files and folders as `dvc.lock` has them, sorted: `path`, `hash`, `md5`, `size`, and `nfiles`
    of a folder. `files` holds every file; a path that is none of them is a folder."""
    return [{"path": path, "hash": "md5", **_hashed(path, files)} for path in sorted(set(paths))]


def md5_of(path: Path) -> str:
    """MD5 of the file's bytes, 32 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def folder_md5(md5s: Mapping[str, str]) -> str:
    """DVC's hash of a folder, from its files': MD5 of their sorted listing as JSON, and `.dir`."""
    listing = json.dumps([{"md5": md5s[path], "relpath": path} for path in sorted(md5s)], sort_keys=True)
    return hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _read_stages(dvc_yaml: Path) -> dict[str, Any]:
    stages: dict[str, Any] = (read_yaml(dvc_yaml) or {}).get("stages", {})
    return stages


def _stage_inputs(name: str, entry: Mapping[str, Any], item: str) -> StageInputs:
    # Templates of DVC are filled as text; only the forms that dvc.yaml has are known.
    text = json.dumps(entry.get("do", entry))
    if item:
        value = _item_value(entry, item, f"{name}@{item}")
        text = text.replace("${item}", value).replace("${key}", item).replace("${item.policy}", item)
    stage = json.loads(text)
    outs = [
        out if isinstance(out, str) else next(iter(out))
        for kind in ("outs", "metrics", "plots")
        for out in stage.get(kind) or ()
    ]
    params = tuple(_params(stage.get("params") or ()))
    inputs = StageInputs(stage["cmd"], tuple(stage.get("deps", ())), params, tuple(outs))
    for path in (*inputs.deps, *inputs.outs, *inputs.params_files):
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ConfigurationError(
                f"{name} names {path}, which is outside of the tree: it could not be frozen. Copy it in, "
                "or link to it from the tree"
            )
    return inputs


def _params(declared: Iterable[Any]) -> Iterator[str]:
    for entry in declared:
        for file, keys in entry.items() if isinstance(entry, Mapping) else [(PARAMS_FILE, [entry])]:
            if keys is None or Path(file).suffix not in (".yaml", ".yml", ".json"):
                raise ConfigurationError(
                    f"{file} stands under params, and not as keys of a YAML or JSON file: its values could not be "
                    "compared with those that ran. Name the keys, or name the file under deps"
                )
            yield from (key if file == PARAMS_FILE else f"{file}:{key}" for key in keys)


def _item_value(stage: Mapping[str, Any], item: str, full_name: str) -> str:
    choices = stage.get("foreach", {})
    if isinstance(choices, Mapping) and item in choices:
        return str(choices[item])
    listed = [str(value) for values in stage.get("matrix", {}).values() for value in values]
    listed += choices if isinstance(choices, list) else []
    if item not in listed:
        raise ConfigurationError(f"dvc.yaml has no {full_name}; it lists {', '.join(listed or choices) or 'no items'}")
    return item


def _walk(root: Path, path: str) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder that DVC looks into, relative to the root, with its folders and files."""
    is_ignored = _ignored(root)
    for folder, folders, files in os.walk(root / path):  # follows no links to folders, like DVC
        here = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if not is_ignored(f"{(here / name).as_posix()}/")]
        yield here, folders, [name for name in files if not is_ignored((here / name).as_posix())]


def _ignored(root: Path) -> Any:
    """Matcher of the paths that DVC leaves out; a folder's ends with a slash."""
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
