"""Sends a training's metrics to Weights & Biases, as a sink behind `metrics.jsonl`.

A resumed training goes on in the same run. The run's id lies beside the checkpoints, with the last
step of a process that has closed the run: lines up to that step are not sent again. Lines sent by a
killed process are sent again, because wandb may not have written them; on the axis `step` both are
one point. `wandb sync` joins the folders of one run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.tracking.alarms import KEY
from posttrain.tracking.metrics_log import MetricValue, Sink
from posttrain.tracking.wandb_run import TrackedStage, close_wandb, open_wandb

MEMORY = "wandb.jsonl"  # a name that jobs without a shared disk ship with the checkpoints
# Aggregates of a metric in the run's summary, beside its last value.
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
    """One training's run; it has the lines up to `sent_step`. `memory` has id and last step."""

    def __init__(self, run: Any, stage: str, memory: Path, *, sent_step: int) -> None:
        self._run, self._stage, self._memory = run, stage, memory
        self._sent_step = self._step = sent_step
        self._remember()
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        for name, summary in SUMMARIES.items():
            run.define_metric(name, step_metric="step", summary=summary)

    def write(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        if step <= self._sent_step:
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
    """A sink for the stage's run, if any. Raises as `open_wandb` does."""
    memory = checkpoint_dir / MEMORY
    run_id, sent_step = _remembered(memory)
    run = open_wandb(stage, run_id=run_id)
    return () if run is None else (WandbSink(run, stage.full_name, memory, sent_step=sent_step),)


def _remembered(memory: Path) -> tuple[str | None, int]:
    """Id and last step of the run to go on with; None and 0 where the file cannot be read."""
    try:
        kept = json.loads(memory.read_text(encoding="utf-8"))
        return str(kept["id"]), int(kept["step"])
    except (OSError, ValueError, LookupError, TypeError):
        return None, 0
