"""Environment of a stage's process: variables that it gets, and modules that it must not load."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.state import SNAPSHOT, STATE_DIR

KEY = "POSTTRAIN_STAGE_KEY"  # the fingerprint of the frozen inputs in the working folder
TREE_ROOT = "POSTTRAIN_STAGE_ROOT"  # the person's tree, of which the working folder is a copy
# Prefix of a stage's folder for temporary files: libraries that are killed leave theirs (wandb two,
# as soon as TRL imports it), and they are removed with it.
TEMPORARY = "posttrain-stage-"


def path_with_python(environment: Mapping[str, str] = os.environ) -> str:
    """A `PATH` on which `python`, a stage's command, is the one that runs this."""
    return os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])


def is_snapshot(environment: Mapping[str, str]) -> bool:
    """True if the working folder is a snapshot, which nobody edits."""
    return environment.get(SNAPSHOT) == "1"


def stage_environment(folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a stage that runs in `folder`: its code comes from there and from no other
    tree, however Python's path was set, and relative paths in our own variables and WANDB_DIR still
    lead to their files. Hugging Face's bars are off: a stage prints its own progress. No bytecode
    is written beside the code: an edit of it would run, and its source look untouched."""
    given = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", **(os.environ if environment is None else environment)}
    given["PYTHONDONTWRITEBYTECODE"] = "1"
    given["WANDB_DIR"] = given.get("WANDB_DIR") or str(folder.resolve() / STATE_DIR)
    paths = filter(None, given.get("PYTHONPATH", "").split(os.pathsep))
    others = [path for path in paths if not (Path(path) / "dvc.yaml").exists()]
    given["PYTHONPATH"] = os.pathsep.join([str(folder.resolve()), *others])
    for name, value in given.items():
        at, path = ("@", value[1:]) if value.startswith("@") else ("", value)
        if not path or Path(path).is_absolute():
            continue
        if name == "WANDB_DIR" or (name.startswith("POSTTRAIN_") and (os.path.exists(path) or Path(path).parent.name)):
            given[name] = at + str(Path(path).absolute())
    return given


def refuse_foreign_modules(loaded: Mapping[str, object], folder: Path) -> None:
    """Raises ConfigurationError where a module that lies in `folder` was imported from somewhere
    else: it would run under the wrong hash."""
    tops = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    for name, module in list(loaded.items()):
        origin = getattr(module, "__file__", None)
        if origin is None or name.partition(".")[0] not in tops:
            continue
        stem = folder / name.replace(".", "/")
        own = next((path for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py") if path.is_file()), None)
        if own is not None and own.resolve() != Path(origin).resolve():
            raise ConfigurationError(
                f"{name} was imported from {origin} and not from the frozen tree: the code that ran would not be "
                "the code that is recorded. Take that folder off Python's path (PYTHONPATH, a .pth file)"
            )
