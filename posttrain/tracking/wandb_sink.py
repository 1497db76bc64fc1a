"""Sends the numbers to Weights & Biases. As a sink behind `metrics.jsonl`: offline unless
`WANDB_MODE` says otherwise, absent where wandb is.

The mode, the project and the folder come from wandb's own environment variables (`WANDB_MODE`,
`WANDB_PROJECT`, `WANDB_DIR`), never from `params.yaml`: looking at a run elsewhere must retrain
nothing. Runs are grouped by git branch and tagged with the commit.
"""

import importlib.util
import os
import subprocess
from collections.abc import Mapping
from typing import Any, Literal, cast

from posttrain.exits import ConfigurationError
from posttrain.limits import reason
from posttrain.redaction import redact_values
from posttrain.tracking.metrics_log import MetricValue, Sink

Mode = Literal["online", "offline", "shared"]


class WandbSink:
    """One run. A run that is resumed is a new offline run holding the whole curve: two offline
    folders of one id cannot be merged later."""

    def __init__(self, name: str, *, mode: Mode, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb  # half a second, and not everybody has it

        self._teardown = wandb.teardown
        branch = _git("rev-parse", "--abbrev-ref", "HEAD") or "no-git"
        commit = _git("rev-parse", "--short", "HEAD")
        # console capture would swallow the progress lines, and machine statistics would start a
        # sampling process
        settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_machine_info=True)
        shown: Any = redact_values(config)
        try:
            self._run = wandb.init(
                mode=mode,
                project=os.environ.get("WANDB_PROJECT", "posttrain"),
                name=name,
                job_type=name,
                group=branch,
                tags=[commit] if commit else None,
                config=shown,
                settings=settings,
            )
        except (wandb.errors.UsageError, wandb.errors.CommError, wandb.errors.AuthenticationError) as error:
            raise ConfigurationError(
                f"WANDB_MODE is {mode!r} and wandb cannot start a run: {reason(error)}. "
                "Set WANDB_MODE=offline or disabled"
            ) from None

    def write(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        self._run.log({name: value for name, value in metrics.items() if value is not None}, step=step)

    def close(self) -> None:
        self._run.finish()
        self._teardown()  # `finish` returns before wandb's service has written the last records of an offline run


def wandb_sinks(name: str, config: Mapping[str, Any]) -> tuple[Sink, ...]:
    """One sink, or none where wandb is not installed or `WANDB_MODE` is `disabled`. `config` is
    what the run's page shows as its settings.

    Raises ConfigurationError for an unknown mode, or where an online run cannot be started.
    """
    mode = os.environ.get("WANDB_MODE", "offline")
    if mode == "disabled" or importlib.util.find_spec("wandb") is None:
        return ()
    if mode not in ("online", "offline", "shared"):
        raise ConfigurationError(
            f"WANDB_MODE is {mode!r}, which wandb does not know; set it to offline, online, shared or disabled, "
            "or unset it"
        )
    return (WandbSink(name, mode=cast(Mode, mode), config=config),)


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except (subprocess.CalledProcessError, FileNotFoundError):
        return ""
