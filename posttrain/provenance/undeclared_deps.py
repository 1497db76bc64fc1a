"""Refuses a stage that does not declare a file which a knob leads it to: DVC would not see the
file's edits.

Such files are trajectories to import, a model's folder in the tree, and a person's own modules with
a world or a score, together with what they import of the tree; what pip installed is locked, and
the library's own files are the stages' deps already (a test compares).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.config.params import Params
from posttrain.data.params import ImportSource
from posttrain.models.params import PretrainedModel
from posttrain.provenance.environment import LIVE_ROOT
from posttrain.provenance.fingerprint import StageInputs
from posttrain.provenance.import_graph import all_imports, is_empty, module_file


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """`knob` is the key with what it names; `is_read_by` says of a stage and its inputs whether it
    goes there. Paths are relative to the tree. `is_large`: who only looks the name up is to have no
    copy."""

    knob: str
    files: tuple[str, ...]
    is_read_by: Callable[[str, StageInputs], bool]
    is_large: bool = False


def live_root() -> Path:
    """The person's tree; the working folder may be a copy of it, which has only what is
    declared."""
    return Path(os.environ.get(LIVE_ROOT, "."))


def undeclared(stages: Mapping[str, StageInputs], params: Params, *, looked_up_by: str = "") -> list[tuple[str, str]]:
    """Knobs, each with the line that says which file is not among the deps of which of the
    `stages`. `looked_up_by` is the stage that goes wherever any knob leads."""
    return [(named.knob, line) for named in _named(params) for line in _lines(named, stages, looked_up_by)]


def world_knob(params: Params) -> str:
    return f"world.type: {params.world.type}"


def score_knob(name: str) -> str:
    return f"reward.extra: {name}"


SOURCE_KNOB = "generate_data.source.path"


def _lines(named: NamedFiles, stages: Mapping[str, StageInputs], looked_up_by: str) -> Iterator[str]:
    """One for all stages that lack the same files."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for stage, inputs in stages.items():
        if (stage == looked_up_by and not named.is_large) or named.is_read_by(stage, inputs):
            lacking.setdefault(tuple(file for file in named.files if not inputs.covers(Path(file))), []).append(stage)
    for files, names in lacking.items():
        if files:
            are, them = ("is", "it") if len(files) == 1 else ("are", "them")
            yield (
                f"{named.knob} leads to {', '.join(files)}, which {are} not among the deps of {', '.join(names)} in "
                f"dvc.yaml: an edit of {them} would run nothing again and the result would pass for current. "
                f"Add {them} there"
            )


def _named(params: Params) -> Iterator[NamedFiles]:
    root, source, model = live_root(), params.generate_data.source, params.model
    if isinstance(source, ImportSource):
        yield NamedFiles(SOURCE_KNOB, (source.path,), lambda stage, _: stage == "generate_data")
    if isinstance(model, PretrainedModel) and not Path(model.name).is_absolute() and (root / model.name).is_dir():
        knob = f"model.name: {model.name}"
        yield NamedFiles(knob, (model.name,), lambda stage, _: stage == "prepare_model", is_large=True)
    yield NamedFiles(
        world_knob(params), _own_files(root, params.world.type), lambda _, inputs: "world" in inputs.params
    )
    for extra in params.reward.extra:
        yield NamedFiles(
            score_knob(extra.name), _own_files(root, extra.name), lambda _, inputs: "reward" in inputs.params
        )


def _own_files(root: Path, name: str) -> tuple[str, ...]:
    """Of `module:function`, the module's file and what it imports of the tree beside the library;
    none where it is none of the tree's."""
    module, colon, _ = name.partition(":")
    first = module_file(root, module) if colon else None
    if first is None:
        return ()
    own = [file for file in sorted(all_imports(root, first)) if not file.startswith("posttrain/")]
    return (first, *(file for file in own if file != first and not is_empty(root, file)))
