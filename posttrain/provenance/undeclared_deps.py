"""Refuses a stage that does not declare a file which a knob names: DVC would not see the file's
edits.

Such files are trajectories to import, a model's folder in the tree, and a person's own modules with
a world or a score, together with what they import of the tree. Installed packages are locked, and
the library's own files are the stages' deps already (a test compares).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.config.params import Params
from posttrain.data.params import ImportSource
from posttrain.models.params import PretrainedModel
from posttrain.provenance.environment import TREE_ROOT
from posttrain.provenance.fingerprint import StageInputs
from posttrain.provenance.import_graph import all_imports, is_empty, module_file
from posttrain.rollout.params import FolderWeights
from posttrain.train.params import SampledPairs

SOURCE_KNOB, FEEDBACK_KNOB = "generate_data.source.path", "sample_preferences.source.path"


_PLAYING = ("sample_preferences", "train_policy", "evaluate")  # with a model, and whoever agent.worker names


def tree_root() -> Path:
    """The person's tree; the working folder may be a copy of it, which has only declared files."""
    return Path(os.environ.get(TREE_ROOT, "."))


def undeclared(stages: Mapping[str, StageInputs], params: Params, *, checked_by: str = "") -> list[tuple[str, str]]:
    """Knobs that name undeclared files, each with a line of the files and the `stages` that lack
    them. `checked_by` is the stage that reads whatever any knob names."""
    return [(named.knob, line) for named in _named(params) for line in _lines(named, stages, checked_by)]


@dataclass(frozen=True, slots=True)
class _NamedFiles:
    """Files that a knob names. `knob` is the key with its value; `is_read_by` tells of a stage and
    its inputs whether it reads them. Paths are relative to the tree. `is_large`: the stage that
    checks the knobs is to have no copy."""

    knob: str
    files: tuple[str, ...]
    is_read_by: Callable[[str, StageInputs], bool]
    is_large: bool = False


def _lines(named: _NamedFiles, stages: Mapping[str, StageInputs], checked_by: str) -> Iterator[str]:
    """One for all stages that lack the same files."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for stage, inputs in stages.items():
        if (stage == checked_by and not named.is_large) or named.is_read_by(stage, inputs):
            lacking.setdefault(tuple(file for file in named.files if not inputs.covers(Path(file))), []).append(stage)
    for files, names in lacking.items():
        if files:
            are, them = ("is", "it") if len(files) == 1 else ("are", "them")
            yield (
                f"{named.knob} leads to {', '.join(files)}, which {are} not among the deps of {', '.join(names)} in "
                f"dvc.yaml: an edit of {them} would run nothing again and the result would pass for current. "
                f"Add {them} there"
            )


def _named(params: Params) -> Iterator[_NamedFiles]:
    root, source, model = tree_root(), params.generate_data.source, params.model
    if isinstance(source, ImportSource):
        yield _NamedFiles(SOURCE_KNOB, (source.path,), lambda stage, _: stage == "generate_data")
    if not isinstance(preferences := params.sample_preferences.source, SampledPairs):
        yield _NamedFiles(FEEDBACK_KNOB, (preferences.path,), lambda stage, _: stage == "import_preferences")
    if isinstance(model, PretrainedModel) and not Path(model.name).is_absolute() and (root / model.name).is_dir():
        knob = f"model.name: {model.name}"
        yield _NamedFiles(knob, (model.name,), lambda stage, _: stage == "prepare_model", is_large=True)
    encoder, is_asked = params.train_retriever.encoder, params.agent.tools.type != "offered"
    if is_asked and params.train_retriever.method != "words" and (root / encoder).is_dir() and encoder[0] != "/":
        knob = f"train_retriever.encoder: {encoder}"
        yield _NamedFiles(knob, (encoder,), lambda stage, _: stage == "train_retriever", is_large=True)
    for role, player in params.agent.worker.others.items() if params.agent.worker else ():
        if isinstance(player, FolderWeights) and not Path(player.path).is_absolute():
            knob = f"agent.worker.{role}.path: {player.path}"
            yield _NamedFiles(knob, (player.path,), lambda stage, _: stage.partition("@")[0] in _PLAYING, is_large=True)
    world = params.world.type
    yield _NamedFiles(f"world.type: {world}", _own_files(root, world), lambda _, inputs: "world" in inputs.params)
    if (judge := params.reward.judge) and judge.rubric:
        yield _NamedFiles("reward.judge.rubric", (judge.rubric,), lambda _, inputs: "reward" in inputs.params)
    if function := params.resample_data.keep.function:
        knob = f"resample_data.keep.function: {function}"
        yield _NamedFiles(knob, _own_files(root, function), lambda stage, _: stage == "resample_data")
    for name in (extra.name for extra in params.reward.extra):
        yield _NamedFiles(f"reward.extra: {name}", _own_files(root, name), lambda _, inputs: "reward" in inputs.params)


def _own_files(root: Path, name: str) -> tuple[str, ...]:
    """Files of `module:function` in the tree beside the library, with those that it imports."""
    module, colon, _ = name.partition(":")
    first = module_file(root, module) if colon else None
    if first is None:
        return ()
    # The library's files are among the deps of every stage that imports them.
    own = [file for file in sorted(all_imports(root, first)) if not file.startswith("posttrain/")]
    return (first, *(file for file in own if file != first and not is_empty(root, file)))
