"""Opens a stage's run in Weights & Biases: offline unless `WANDB_MODE` says otherwise, absent where
wandb is.

Mode, project, folder, group and tags come from wandb's own variables (`WANDB_MODE`,
`WANDB_PROJECT`, `WANDB_DIR`, `WANDB_RUN_GROUP`, `WANDB_TAGS`), never from `params.yaml`: looking at
a run elsewhere must retrain nothing. The stage runner sets those that a person has not
(`provenance/wandb_variables.py`). The job type is the stage, the config the whole `params.yaml`.
"""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import reason
from posttrain.runtime.redaction import redact_values
from posttrain.runtime.state import STATE_DIR, WANDB

_MODES = ("online", "offline", "shared")
_HEADER_BYTES = 7


class TrackedStage(Protocol):
    """The stage that a run of W&B belongs to."""

    @property
    def name(self) -> str: ...

    @property
    def full_name(self) -> str:
        """The name with the item: `evaluate@sft`."""

    @property
    def params(self) -> BaseModel: ...


def open_wandb(stage: TrackedStage, *, run_id: str | None = None) -> Any:
    """A new run of wandb, or with a `run_id` more of an earlier one. None where wandb is not
    installed or `WANDB_MODE` is `disabled`. Raises ConfigurationError for an unknown mode, a folder
    that cannot be written, or where wandb refuses a setting or an online run."""
    mode: Any = os.environ.get("WANDB_MODE", "offline")
    if mode == "disabled" or importlib.util.find_spec("wandb") is None:
        return None
    if mode not in _MODES:
        raise ConfigurationError(
            f"WANDB_MODE is {mode!r}, which wandb does not know; set it to {', '.join(_MODES)} or disabled, or unset it"
        )
    folder = Path(os.environ.get("WANDB_DIR") or STATE_DIR)
    try:
        (folder / WANDB).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"runs of W&B cannot be written below {folder} ({error.strerror}): name another folder in WANDB_DIR, "
            "or set WANDB_MODE=disabled"
        ) from None
    _remove_empty(folder / WANDB, run_id)
    os.environ.setdefault("WANDB_SILENT", "true")
    # tables are read again from here by `wandb sync`; wandb would have them in the home folder
    os.environ.setdefault("WANDB_DATA_DIR", str((folder / WANDB).resolve()))
    import wandb  # half a second, and not everybody has it

    # console capture would swallow the progress lines, machine statistics would start a sampling
    # process, and in a snapshot wandb would ask git of another tree
    settings = wandb.Settings(
        console="off",
        x_disable_stats=True,
        x_disable_machine_info=True,
        disable_git=True,
        git_commit=os.environ.get("WANDB_GIT_COMMIT"),
    )
    config: Any = redact_values(stage.params.model_dump(mode="json"))
    try:
        return wandb.init(
            mode=mode,
            project=os.environ.get("WANDB_PROJECT", "posttrain"),
            name=stage.full_name,
            job_type=stage.name,
            group=os.environ.get("WANDB_RUN_GROUP"),
            tags=[tag for tag in os.environ.get("WANDB_TAGS", "").split(",") if tag],
            dir=folder,
            id=run_id,
            resume="allow" if run_id else None,
            config=config,
            settings=settings,
        )
    except (wandb.errors.Error, ValueError) as error:  # ValueError: of a variable of wandb's
        wandb.teardown()
        raise ConfigurationError(
            f"WANDB_MODE is {mode!r} and wandb cannot start a run: {reason(error)}. Set WANDB_MODE=offline or disabled"
        ) from None


def close_wandb(run: Any, *, is_good: bool = True) -> None:
    """Returns when all is on the disk, or sent."""
    import wandb

    run.finish(exit_code=0 if is_good else 1)
    wandb.teardown()  # `finish` returns before wandb's service has written the last records of an offline run


def _remove_empty(folder: Path, run_id: str | None) -> None:
    """Removes files of a process of the run that was killed before wandb wrote its first block:
    `wandb sync` would stop there and leave out the others."""
    for file in folder.glob(f"offline-run-*-{run_id}/*.wandb"):
        if file.stat().st_size <= _HEADER_BYTES:
            shutil.rmtree(file.parent)
