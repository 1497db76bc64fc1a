"""What a stage depends on, read from `dvc.yaml`, and a fingerprint of it by content.

DVC is not asked: a stage is a program that also runs where dvc is not installed (a pod), and the two facts needed are plain YAML.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from posttrain.exits import ConfigurationError


@dataclass(frozen=True, slots=True)
class StageInputs:
    """Files and folders, and the keys of `params.yaml` (`world`, `evaluate.num_samples`), that a stage declares. Paths are relative to the root."""

    command: str
    deps: tuple[str, ...]
    params: tuple[str, ...]

    def covers(self, path: Path) -> bool:
        """Whether a dep is this file or a folder above it; paths are compared as they resolve, so `..` and links lead nowhere else."""
        return any(path.resolve().is_relative_to(Path(dep).resolve()) for dep in self.deps)


@dataclass(frozen=True, slots=True)
class FileState:
    """`stat` (size, mtime in ns, inode) lets an untouched file go without being read a second time."""

    sha256: str
    stat: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Content of every input. `digest` depends on names and contents only, never on times."""

    command: str
    files: Mapping[str, FileState]
    params: Mapping[str, str]

    @property
    def digest(self) -> str:
        content = [self.command, {path: state.sha256 for path, state in self.files.items()}, dict(self.params)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_stage_inputs(dvc_yaml: Path, name: str, item: str = "") -> StageInputs:
    """The declared inputs of a stage; `item` picks one of a `foreach` or `matrix` stage. Raises ConfigurationError where there is no such stage."""
    stages = yaml.safe_load(dvc_yaml.read_text(encoding="utf-8"))["stages"]
    if name not in stages:
        raise ConfigurationError(f"{dvc_yaml} has no stage {name!r}; a stage's function is named as the stage")
    text = json.dumps(stages[name].get("do", stages[name]))
    if item:
        value = _item_value(stages[name], item, f"{name}@{item}")
        text = text.replace("${item}", value).replace("${key}", item).replace("${item.policy}", item)
    stage = json.loads(text)
    return StageInputs(
        command=stage["cmd"],
        deps=tuple(stage.get("deps", ())),
        params=tuple(key for key in stage.get("params", ()) if isinstance(key, str)),
    )


def take_fingerprint(inputs: StageInputs, *, params_yaml: Path = Path("params.yaml"), earlier: Fingerprint | None = None) -> Fingerprint:
    """Hash every input. A file whose size, time and inode equal those in `earlier` is taken from there. A missing file counts as empty content."""
    known = earlier.files if earlier else {}
    files = {str(path): _file_state(path, known.get(str(path))) for dep in inputs.deps for path in _files_of(Path(dep))}
    content = yaml.safe_load(params_yaml.read_text(encoding="utf-8"))
    params = {key: json.dumps(_at(content, key), sort_keys=True) for key in inputs.params}
    return Fingerprint(inputs.command, files, params)


def changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    """What differs, as a person names it: paths, and `params.yaml: key`."""
    paths = sorted(path for path in {*before.files, *after.files} if _digest_at(before, path) != _digest_at(after, path))
    keys = sorted(key for key in {*before.params, *after.params} if before.params.get(key) != after.params.get(key))
    return paths + [f"params.yaml: {key}" for key in keys]


def _item_value(stage: Mapping[str, Any], item: str, full_name: str) -> str:
    choices = stage.get("foreach", {})
    if isinstance(choices, Mapping) and item in choices:
        return str(choices[item])
    listed = [str(value) for values in stage.get("matrix", {}).values() for value in values] + (list(choices) if isinstance(choices, list) else [])
    if item not in listed:
        raise ConfigurationError(f"dvc.yaml has no {full_name}; it lists {', '.join(listed or choices) or 'no items'}")
    return item


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    else:
        yield path


def _file_state(path: Path, known: FileState | None) -> FileState:
    try:
        status = path.stat()
    except FileNotFoundError:
        return FileState("", (0, 0, 0))
    stat = (status.st_size, status.st_mtime_ns, status.st_ino)
    if known and known.stat == stat:
        return known
    with path.open("rb") as file:
        return FileState(hashlib.file_digest(file, "sha256").hexdigest(), stat)


def _digest_at(fingerprint: Fingerprint, path: str) -> str | None:
    state = fingerprint.files.get(path)
    return state.sha256 if state else None


def _at(content: Any, key: str) -> Any:
    for part in key.split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content
