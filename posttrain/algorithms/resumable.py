"""What must a Hugging Face trainer do so that a killed run reaches the same bytes as one that was never killed?

Its checkpoints already hold weights, optimizer, schedule, random states and the place in the data. Added here: a checkpoint counts only once it is
sealed (`checkpointing.py`), it carries `metrics.jsonl` as it stood, SIGTERM ends the run at the next step with a checkpoint, and a full disk ends it
with the last good one kept. Everything that could differ between two runs (timings, model cards, progress bars) is turned off.
"""

import contextlib
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError
from transformers import PrinterCallback, Trainer, TrainerState
from transformers.utils import logging

from posttrain.algorithms.checkpointing import PREFIX, newest_complete, no_room, prune, seal
from posttrain.exits import Interrupted
from posttrain.tracking.metrics_log import MetricsLog, MetricValue, Sink

METRICS = "metrics.jsonl"
STATE = "trainer_state.json"


@dataclass(slots=True)
class TrainingRun:
    """One training, possibly resumed: where its checkpoints are, the newest complete one (None at the start), and who hears of its progress."""

    folder: Path
    checkpoint: Path | None
    metrics: MetricsLog
    progress: Callable[[int, int, str], None]
    is_stopping: bool = field(default=False)


@contextlib.contextmanager
def open_run(folder: Path, *, sinks: tuple[Sink, ...] = (), progress: Callable[[int, int, str], None] = lambda *_: None) -> Iterator[TrainingRun]:
    """Find the checkpoint to go on from, bring `folder/metrics.jsonl` back to where it stood then, and listen for SIGTERM."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = newest_complete(folder)
    earlier = (checkpoint / METRICS).read_text(encoding="utf-8") if checkpoint else ""
    with MetricsLog(folder / METRICS, sinks=sinks, earlier=earlier) as metrics, warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # TRL reads names that transformers has deprecated
        run = TrainingRun(folder, checkpoint, metrics, progress)

        def stop(*_: object) -> None:
            run.is_stopping = True

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield run
        finally:
            signal.signal(signal.SIGTERM, before)


def trainer_arguments(run: TrainingRun, model: Any, *, max_steps: int, checkpoint_every_steps: int, lr: float, seed: int) -> dict[str, Any]:
    """The arguments common to the four trainers. Rows come in the order of the dataset, one epoch: the order is ours to draw and to test."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # TRL's trainers report themselves when they are made
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    return {
        "output_dir": str(run.folder),
        "max_steps": max_steps,
        "learning_rate": lr,
        "seed": seed,
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "save_strategy": "steps",
        "save_steps": checkpoint_every_steps,
        "logging_steps": 1,  # a mean over several steps would be cut in two by a resumption
        "logging_nan_inf_filter": False,  # it replaces a NaN loss by an earlier one
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "error",
        "activation_checkpointing": model.is_activation_checkpointing,  # TRL would turn it on
        "bf16": False,  # the weights have their dtype already; TRL would turn on autocast
    }


class Resumable(Trainer):  # type: ignore[misc]  # transformers is untyped
    """Mixed in before a TRL trainer, which needs `run=` then. `logged` maps the names of the trainer's log to those of `metrics.jsonl`."""

    logged: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *args: Any, run: TrainingRun, **kwargs: Any) -> None:
        self.run = run
        logging.disable_progress_bar()
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)

    def train_or_resume(self) -> None:
        """Train from the start, or from the run's checkpoint; where that checkpoint was the end already, only load its result."""
        checkpoint = self.run.checkpoint
        if checkpoint is None:
            self.train()
            return
        state = TrainerState.load_from_json(str(checkpoint / STATE))
        if self.is_over(state):
            self._load_from_checkpoint(str(self.run.folder / Path(state.best_model_checkpoint or checkpoint).name))
            return
        self.train(resume_from_checkpoint=str(checkpoint))

    def is_over(self, state: TrainerState) -> bool:
        """Whether a run in this state has nothing left to do."""
        return bool(state.global_step >= self.args.max_steps)

    def metrics_of(self, logs: Mapping[str, float]) -> dict[str, MetricValue]:
        """What of the trainer's log goes into `metrics.jsonl`; empty for none."""
        return {ours: logs[theirs] for theirs, ours in self.logged.items() if theirs in logs}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        if metrics := self.metrics_of(logs):
            try:
                self.run.metrics.write(self.state.global_step, metrics)
            except OSError as error:
                if end := no_room(self.run.folder, error):
                    raise end from error
                raise

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: a model card names versions and paths of this machine."""

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        step, last = self.state.global_step, self.state.max_steps
        if self.run.is_stopping:
            self.control.should_save = True
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.run.progress(step, last, "")
        if self.run.is_stopping and step < last:
            raise Interrupted(f"asked to stop after step {step} of {last}; a checkpoint of it is kept: run again to go on from there")

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        checkpoint = self.run.folder / f"{PREFIX}{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            shutil.copyfile(self.run.metrics.path, checkpoint / METRICS)
            seal(checkpoint)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(checkpoint, ignore_errors=True)
            if end := no_room(self.run.folder, error):
                raise end from error
            raise
        best = self.state.best_model_checkpoint
        prune(self.run.folder, keep=Path(best) if best else None)
