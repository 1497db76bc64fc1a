"""Sends a training's numbers to Weights & Biases, as a sink behind `metrics.jsonl`.

A training that was interrupted goes on in the same run. Beside its checkpoints lies that run's id,
with the last step of a process that has closed it: lines up to there are not sent again. What a
killed process had sent is, because wandb may not have written it; on the axis `step` both are one
point. `wandb sync` puts the folders of one run behind each other.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.tracking.alarms import KEY
from posttrain.tracking.metrics_log import MetricValue, Sink
from posttrain.tracking.wandb_run import TrackedStage, close_wandb, open_wandb

MEMORY = "wandb.jsonl"  # a name that jobs without a shared disk ship with the checkpoints
# What the run's row in a table says of a metric beside its last value.
SUMMARIES = {
    "loss": "min,last",
    "eval_loss": "min,last",
    "pair_accuracy": "max,last",
    "strict_success": "max,last",
    "success": "max,last",
    "reward_mean": "max,last",
    "reward_std": "min,last",
    "reward_std_batch": "min,last",
    "frac_reward_zero_std": "max,last",
    "frac_reward_zero_std_all_bad": "max,last",
    "frac_reward_zero_std_all_good": "max,last",
    "frac_reward_zero_std_other": "max,last",
    "frac_tokens_nonzero_advantage": "min,last",
    "definition_version": "last",
    "entropy": "min,last",
    "kl": "max,last",
}


class WandbSink:
    """One training's run. `memory` is the file of its id and last step; up to the step `told` it
    has all already."""

    def __init__(self, run: Any, stage: str, memory: Path, *, told: int) -> None:
        self._run, self._stage, self._memory = run, stage, memory
        self._told = self._step = told
        self._remember()
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        for name, summary in SUMMARIES.items():
            run.define_metric(name, step_metric="step", summary=summary)

    def write(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        if step <= self._told:
            return
        self._step = step
        shown = {name: value for name, value in metrics.items() if value is not None and name != KEY}
        self._run.log({"step": step, **shown}, step=step)
        for alarm in str(metrics.get(KEY) or "").split():
            self._run.alert(title=alarm, text=f"{self._stage} at step {step}: {alarm}", level="WARN")

    def close(self) -> None:
        close_wandb(self._run)
        self._remember()

    def _remember(self) -> None:
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        self._memory.write_text(json.dumps({"id": self._run.id, "step": self._step}) + "\n", encoding="utf-8")


def wandb_sinks(stage: TrackedStage, checkpoint_dir: Path) -> tuple[Sink, ...]:
    """One sink, or none where `open_wandb` gives no run; raises what it raises."""
    memory = checkpoint_dir / MEMORY
    run_id, told = _remembered(memory)
    run = open_wandb(stage, run_id=run_id)
    return () if run is None else (WandbSink(run, stage.full_name, memory, told=told),)


def _remembered(memory: Path) -> tuple[str | None, int]:
    """The run to go on with and the last step that it has; a new one where nothing legible says
    so."""
    try:
        told = json.loads(memory.read_text(encoding="utf-8"))
        return str(told["id"]), int(told["step"])
    except (OSError, ValueError, LookupError, TypeError):
        return None, 0
