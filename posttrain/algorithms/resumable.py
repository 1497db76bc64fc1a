"""Makes a killed run of a Hugging Face trainer reach the same bytes as one that was never killed.

Its checkpoints already hold weights, optimizer, schedule, random states and the place in the data.
Added here: a checkpoint counts only once it is sealed (`checkpointing.py`), it carries
`metrics.jsonl` as it stood, SIGTERM and SIGUSR1 end the run at the next step with a checkpoint, and
a full disk ends it with the last good one kept. Everything that could differ between two runs
(timings, model cards, progress bars) is turned off.

Of several processes (`processes.py`) the first writes and the others agree: on the checkpoint to go
on from and on the step after which to stop. A checkpoint holds whole weights and a whole optimizer
state, also where they are sharded, so a run may go on with another number of processes.
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

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerState
from transformers.utils import logging

from posttrain.algorithms import processes, sharding
from posttrain.algorithms.checkpointing import PREFIX, is_complete, newest_complete, no_room, prune, seal
from posttrain.exits import Interrupted
from posttrain.models.cpu_kernels import fast_products
from posttrain.models.loading import CHECKPOINTING
from posttrain.models.parts import parts_beside
from posttrain.stage.rank import STOP_SIGNALS
from posttrain.tracking.alarms import Alarms
from posttrain.tracking.metrics_log import MetricsLog, MetricValue, Sink

METRICS = "metrics.jsonl"
STATE, OPTIMIZER, SCHEDULER = "trainer_state.json", "optimizer.pt", "scheduler.pt"


@dataclass(slots=True)
class TrainingRun:
    """One training, possibly resumed: where its checkpoints are, the newest complete one (None at
    the start), who hears of its progress, and how many of a step's rows go through the model
    together (None: an even share of them, see `processes.parts_of`).

    `metrics` is None in all processes but the first."""

    folder: Path
    checkpoint: Path | None
    metrics: MetricsLog | None
    progress: Callable[[int, int, str], None]
    rows_at_once: int | None = None
    is_stopping: bool = field(default=False)


@contextlib.contextmanager
def open_run(
    folder: Path,
    *,
    sinks: tuple[Sink, ...] = (),
    alarms: Alarms | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    rows_at_once: int | None = None,
) -> Iterator[TrainingRun]:
    """Find the checkpoint to go on from, bring `folder/metrics.jsonl` back to where it stood then,
    and listen for SIGTERM and SIGUSR1.

    Of several processes the first finds it, keeps the metrics and tells of the progress.
    """
    processes.join()
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = processes.from_first(newest_complete(folder, _best_of) if processes.is_first() else None)
    with _open_metrics(folder, checkpoint, sinks, alarms) as metrics, warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", category=FutureWarning, module="transformers"
        )  # TRL reads names that transformers has deprecated
        told = progress if processes.is_first() else lambda *_: None
        run = TrainingRun(folder, checkpoint, metrics, told, rows_at_once)

        def stop(*_: object) -> None:
            run.is_stopping = True

        before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
        try:
            yield run
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _best_of(checkpoint: Path) -> Path | None:
    """The checkpoint whose weights a run from this one may end with; None where that is itself. Not
    of another folder: a run may have moved."""
    if not (checkpoint / STATE).is_file():  # of a training online, which ends with its last weights
        return None
    best = TrainerState.load_from_json(str(checkpoint / STATE)).best_model_checkpoint
    return checkpoint.with_name(Path(best).name) if best and Path(best).name != checkpoint.name else None


def _open_metrics(
    folder: Path, checkpoint: Path | None, sinks: tuple[Sink, ...], alarms: Alarms | None
) -> contextlib.AbstractContextManager[MetricsLog | None]:
    if not processes.is_first():
        return contextlib.nullcontext()
    earlier = (checkpoint / METRICS).read_text(encoding="utf-8") if checkpoint else ""
    return MetricsLog(folder / METRICS, sinks=sinks, earlier=earlier, alarms=alarms)


def trainer_arguments(
    run: TrainingRun, model: Any, *, max_steps: int, checkpoint_every_steps: int, lr: float, seed: int
) -> dict[str, Any]:
    """The arguments common to the trainers. Rows come in the order of the dataset, one epoch:
    the order is ours to draw and to test."""
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
        "log_level_replica": "error",
        # there are none, and looking for them takes a walk through the graph at every step
        "ddp_find_unused_parameters": False,
        CHECKPOINTING: getattr(model, f"is_{CHECKPOINTING}"),  # TRL would turn it on
        "bf16": False,  # the weights have their dtype already; TRL would turn on autocast
    }


class Resumable(Trainer):  # type: ignore[misc]  # transformers is untyped
    """Mixed in before a TRL trainer, which needs `run=`, `whole=` and `optimizer=` then.

    `logged` maps the names of the trainer's log to those of `metrics.jsonl`. `whole` is the model
    whose weights the caller reads; the trainer gets its `sharding.learner_of`, and `optimizer` is
    of that.
    """

    logged: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self, *args: Any, run: TrainingRun, whole: nn.Module, optimizer: torch.optim.Optimizer, **kwargs: Any
    ) -> None:
        self.run, self.whole = run, whole
        logging.disable_progress_bar()
        super().__init__(*args, **kwargs)
        self.optimizer: Any = optimizer  # not as an argument, which is refused under FSDP
        self.remove_callback(PrinterCallback)
        processes.refuse_another_count(self.accelerator.num_processes)

    def train_or_resume(self) -> None:
        """Train from the start, or from the run's checkpoint; where that checkpoint was the end
        already, only load its result."""
        with fast_products(self.args.device), parts_beside(self.model):
            self._train_or_resume()
        self.refresh_whole()

    def _train_or_resume(self) -> None:
        checkpoint = self.run.checkpoint
        if checkpoint is None:
            self.train()
        else:
            state = TrainerState.load_from_json(str(checkpoint / STATE))
            if self.is_over(state):
                self._load_from_checkpoint(str(self._whole(Path(state.best_model_checkpoint or checkpoint))))
            else:
                self.train(resume_from_checkpoint=str(checkpoint))

    def refresh_whole(self) -> None:
        """Give `whole` the weights as they are now; all processes must call it. They are one model
        where nothing is sharded."""
        if processes.is_sharded():
            sharding.gather_weights(self.model, self.whole)

    def is_over(self, state: TrainerState) -> bool:
        """Whether a run in this state has nothing left to do."""
        return bool(state.global_step >= self.args.max_steps)

    def metrics_of(self, logs: Mapping[str, float]) -> dict[str, MetricValue]:
        """What of the trainer's log goes into `metrics.jsonl`; empty for none."""
        return {ours: logs[theirs] for theirs, ours in self.logged.items() if theirs in logs}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        metrics = self.metrics_of(logs)
        if metrics and self.run.metrics is not None:
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
        is_stopping = any(processes.gather(self.run.is_stopping))  # who was told later than the others stops with them
        if is_stopping:
            self.control.should_save = True
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.run.progress(step, last, "")
        if is_stopping and step < last:
            raise Interrupted(
                f"asked to stop after step {step} of {last}; a checkpoint of it is kept: run again to go on from there"
            )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        checkpoint = self.run.folder / f"{PREFIX}{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            processes.wait_for_all()  # each has written its random state
            if self.run.metrics is not None:
                shutil.copyfile(self.run.metrics.path, checkpoint / METRICS)
                seal(checkpoint)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(checkpoint, ignore_errors=True)
            if end := no_room(self.run.folder, error):
                raise end from error
            raise
        best = self.state.best_model_checkpoint
        if processes.is_first():
            prune(self.run.folder, keep=Path(best) if best else None)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        if processes.is_sharded() and self.args.device.type == "cpu":
            sharding.sum_without_average(self.model)
        return prepared

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not processes.is_sharded():
            super()._save_optimizer_and_scheduler(output_dir)
            return
        state = sharding.whole_optimizer_state(self.optimizer.optimizer)
        if self.args.should_save:
            torch.save(state, Path(output_dir, OPTIMIZER))
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not processes.is_sharded() or checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        sharding.load_optimizer_state(
            self.optimizer.optimizer, torch.load(Path(checkpoint, OPTIMIZER), weights_only=True)
        )
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint, SCHEDULER), weights_only=True))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not processes.is_sharded():
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        self.is_fsdp_enabled = False  # for the whole model, which nobody has sharded
        try:
            super()._load_from_checkpoint(resume_from_checkpoint, self.whole)
        finally:
            self.is_fsdp_enabled = True
        sharding.scatter_weights(self.whole, self.model)

    def _whole(self, checkpoint: Path) -> Path:
        """The checkpoint of that name in the run's folder; all processes must call it. Raises
        Interrupted where it has been damaged since it was sealed, which the first does and may have
        done just now."""
        found = self.run.folder / checkpoint.name
        if not processes.from_first(is_complete(found) if processes.is_first() else None):
            raise Interrupted(
                f"{found} holds the best weights and is not what was sealed: they would be the run's result. "
                "Run again, it goes on from a checkpoint "
                "before, or begins anew"
            )
        return found

    def _load_best_model(self) -> None:
        if self.state.best_model_checkpoint:
            self._whole(Path(self.state.best_model_checkpoint))
        if processes.is_sharded():
            self._load_from_checkpoint(self.state.best_model_checkpoint)
        else:
            super()._load_best_model()
