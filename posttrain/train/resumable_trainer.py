"""Resumable trainings: a killed run of a Hugging Face trainer reaches the bytes of an undisturbed
one.

A trainer's checkpoints hold weights, optimizer, schedule, random states and the place in the data.
Added here, by callbacks: a checkpoint counts only once it is sealed, it carries `metrics.jsonl` as
it stood, SIGTERM and SIGUSR1 end the run at the next step with a checkpoint. All that could differ
between two runs (timings, model cards, progress bars) is turned off.

The first of several processes writes; all agree on the checkpoint to resume from and the step to
stop after. Where weights are sharded, so is a checkpoint; a run may be resumed with another number
of processes.
"""

import contextlib
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from posttrain.models import distributed, sharding
from posttrain.models.cpu_kernels import fast_products
from posttrain.models.loading import CHECKPOINTING
from posttrain.models.lora import activate_second
from posttrain.models.micro_batches import NO_LIMIT, AtOnce, cut_alike, dealt
from posttrain.models.optimizers import optimizer_of
from posttrain.models.params import OptimizerParams
from posttrain.models.parts import exchanging, parts_beside
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted
from posttrain.runtime.worker import STOP_SIGNALS
from posttrain.tracking.alarms import Alarms
from posttrain.tracking.metrics_log import MetricsLog, MetricValue, Sink
from posttrain.train.checkpointing import PREFIX, is_complete, newest_complete, prune, seal
from posttrain.train.sharded_state import is_sharded_state, load_optimizer_file, load_shards, save_shards

METRICS = "metrics.jsonl"
SCHEDULES = {"linear": "linear", "constant": "constant_with_warmup", "cosine": "cosine"}  # as transformers names them
ROWS = "rows"  # of a batch that is cut within the step
STATE, OPTIMIZER, SCHEDULER = "trainer_state.json", "optimizer.pt", "scheduler.pt"


@dataclass(slots=True)
class TrainingRun:
    """One training. `folder`: of its checkpoints; `checkpoint`: the one to resume from;
    `metrics`: None in all processes but the first; `at_once`: limits of a micro-batch."""

    folder: Path
    checkpoint: Path | None
    metrics: MetricsLog | None
    progress: Callable[[int, int, str], None]
    at_once: AtOnce = NO_LIMIT
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def is_stopping(self) -> bool:
        """True once the process was asked to stop."""
        return self.stop.is_set()


@contextlib.contextmanager
def open_run(
    folder: Path,
    *,
    sinks: tuple[Sink, ...] = (),
    alarms: Alarms | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    at_once: AtOnce = NO_LIMIT,
) -> Iterator[TrainingRun]:
    """Find the checkpoint to resume from, bring `folder/metrics.jsonl` back to where it stood
    then, and listen for SIGTERM and SIGUSR1. The first process alone writes and reports."""
    distributed.join()
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = distributed.from_first(newest_complete(folder) if distributed.is_first() else None)
    with _open_metrics(folder, checkpoint, sinks, alarms) as metrics, warnings.catch_warnings():
        # TRL reads names that transformers has deprecated
        warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
        own_progress = progress if distributed.is_first() else lambda *_: None
        run = TrainingRun(folder, checkpoint, metrics, own_progress, at_once)

        before = {number: signal.signal(number, lambda *_: run.stop.set()) for number in STOP_SIGNALS}
        try:
            yield run
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def open_part(run: TrainingRun, name: str, *, first_step: int, num_steps: int) -> Iterator[TrainingRun]:
    """A training that is a part of `run`: a phase or a round. It has the folder `name` with
    checkpoints and metrics of its own, and its lines also become lines of the run's, which has
    `num_steps` in all, from `first_step` on. A part that was over is opened again like one that
    was killed, and its lines come again."""
    folder = run.folder / name
    folder.mkdir(exist_ok=True)
    checkpoint = distributed.from_first(newest_complete(folder) if distributed.is_first() else None)
    whole = _IntoWhole(run.metrics, first_step)
    with _open_metrics(folder, checkpoint, (whole,), None) as metrics:
        whole.is_new = True

        def progress(step: int, _: int, note: str) -> None:
            run.progress(first_step + step, num_steps, note)

        yield TrainingRun(folder, checkpoint, metrics, progress, run.at_once, run.stop)


class _IntoWhole:
    """A sink: the lines of a part become lines of the whole run's log."""

    def __init__(self, whole: MetricsLog | None, first_step: int) -> None:
        self._whole, self._first_step = whole, first_step
        self.is_new = False  # lines of a checkpoint come first

    def write(self, step: int, metrics: Mapping[str, MetricValue]) -> None:
        if self._whole is not None:
            self._whole.write(self._first_step + step, metrics, is_new=self.is_new)

    def close(self) -> None: ...


def _open_metrics(
    folder: Path, checkpoint: Path | None, sinks: tuple[Sink, ...], alarms: Alarms | None
) -> contextlib.AbstractContextManager[MetricsLog | None]:
    if not distributed.is_first():
        return contextlib.nullcontext()
    earlier = (checkpoint / METRICS).read_text(encoding="utf-8") if checkpoint else ""
    return MetricsLog(folder / METRICS, sinks=sinks, earlier=earlier, alarms=alarms)


def trainer_arguments(
    run: TrainingRun,
    model: Any,
    optimizer_params: OptimizerParams,
    *,
    max_steps: int,
    checkpoint_every_steps: int,
    seed: int,
) -> dict[str, Any]:
    """Common arguments. Rows come in the order of the dataset, in one epoch: the order is ours
    to draw and to test."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # TRL's trainers report themselves when they are made
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    return {
        "output_dir": str(run.folder),
        "max_steps": max_steps,
        "learning_rate": optimizer_params.lr,
        "lr_scheduler_type": SCHEDULES[optimizer_params.lr_schedule],
        "warmup_steps": round(optimizer_params.lr_warmup_frac * max_steps),
        "max_grad_norm": optimizer_params.max_grad_norm,
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


def num_tokens(row: Mapping[str, Any]) -> int:
    """Number of tokens of a data set's row, of a pair those of the longer side."""
    return max(len(values) for name, values in row.items() if name.endswith("ids"))


def _refuse_deepspeed(at_once: AtOnce) -> None:
    if distributed.is_deepspeed():
        raise ConfigurationError(
            f"model.tokens_at_once is {at_once.tokens}, and DeepSpeed makes an optimizer step after a fixed number of "
            "micro-batches: take model.rows_at_once, or infra/accelerate/ddp.yaml or fsdp.yaml"
        )


def asked_to_stop(step: int, last: int) -> Interrupted:
    return Interrupted(f"asked to stop after step {step} of {last}; its checkpoint is kept: run again to go on")


class RunCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Writes metrics, seals checkpoints, reports progress, and ends the run when asked to stop.
    `logged` maps the trainer's names to those of `metrics.jsonl`."""

    def __init__(self, run: TrainingRun, logged: Mapping[str, str]) -> None:
        self._run, self._logged = run, logged
        self._is_stopping = False
        self._reported = 0

    def on_train_begin(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self._reported = state.global_step

    def on_step_begin(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self._report(state)

    def on_step_end(self, _args: TrainingArguments, _state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # processes get the signal at different times: all stop after the step in which one has it
        self._is_stopping = any(distributed.gather(self._run.is_stopping))
        if self._is_stopping:
            control.should_save = True

    def on_log(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        _control: TrainerControl,
        *,
        logs: Mapping[str, float],
        **_: Any,
    ) -> None:
        metrics = {ours: logs[theirs] for theirs, ours in self._logged.items() if theirs in logs}
        if metrics and self._run.metrics is not None:
            self._run.metrics.write(state.global_step, metrics)

    def on_save(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        step, last = state.global_step, state.max_steps
        checkpoint = self._run.folder / f"{PREFIX}{step}"
        distributed.wait_for_all()  # each has written its random state
        if self._run.metrics is not None:
            shutil.copyfile(self._run.metrics.path, checkpoint / METRICS)
            seal(checkpoint)
        if distributed.is_first():
            prune(self._run.folder, keep=Path(state.best_model_checkpoint) if state.best_model_checkpoint else None)
        if self._is_stopping and step < last:
            self._report(state)
            raise asked_to_stop(step, last)

    def on_train_end(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self._report(state)

    def _report(self, state: TrainerState) -> None:
        """Report the step's end: after its metrics, evaluation and checkpoint."""
        if state.global_step > self._reported:
            self._reported = state.global_step
            self._run.progress(state.global_step, state.max_steps, "")


class _Rows:
    """Rows on their way through the data loader, which would send each number of a list."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = rows


class Resumable(Trainer):  # type: ignore[misc]  # transformers is untyped
    """Mixed in before a TRL trainer, which trains `model` in place; under FSDP it becomes shards.

    With a limit in tokens, or `rows_beside`, a batch is all of this process's rows of a step, cut
    here; transformers has micro-batches of one number of rows only.
    """

    logged: ClassVar[Mapping[str, str]] = {}
    data_collator: Any
    train_dataset: Any
    is_of_pairs: ClassVar[bool] = False  # a row of the data set is two of the model's

    def __init__(
        self,
        *,
        run: TrainingRun,
        model: nn.Module,
        optimizer_params: OptimizerParams,
        rows_beside: int = 0,
        **kwargs: Any,
    ) -> None:
        self.run, self._rows_beside = run, rows_beside
        logging.disable_progress_bar()
        sharding.refuse_optimizer(optimizer_params.optimizer)
        built = optimizer_of(sharding.sharded(model), optimizer_params)
        super().__init__(model=model, **kwargs)
        self.collate: Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]] = self.data_collator
        if rows_beside or run.at_once.tokens is not None:
            self.data_collator = lambda rows: {ROWS: _Rows(rows)}
            _refuse_deepspeed(run.at_once)
        self.optimizer: Any = built  # not as an argument, which is refused under FSDP
        self.remove_callback(PrinterCallback)
        self.add_callback(RunCallback(run, self.logged))
        distributed.refuse_another_count(self.accelerator.num_processes)
        if distributed.is_sharded():
            self.accelerator.prepare = self._prepared

    def train_or_resume(self) -> None:
        """Train from the start or the run's checkpoint; where that was the end already, only
        load its result. Ends with the best weights where there is a measure."""
        checkpoint, state = self.run.checkpoint, self.state
        if checkpoint is not None:
            state = TrainerState.load_from_json(str(checkpoint / STATE))
        if checkpoint is None or not self.is_over(state):
            self._deal_rows()
            with fast_products(self.args.device), parts_beside(self.model):
                self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            state, checkpoint = self.state, None
        if result := state.best_model_checkpoint or checkpoint:
            self._load_from_checkpoint(str(self._sound(Path(result))))

    def is_over(self, state: TrainerState) -> bool:
        return bool(state.global_step >= self.args.max_steps)

    def training_step(
        self, model: Any, inputs: Mapping[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Gradients of a micro-batch, or where the step is cut here of all of them; the loss."""
        if ROWS not in inputs:
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
            return loss
        model.train()
        rows = inputs[ROWS].rows
        places = self._cut(rows)
        parts = [self._prepare_inputs(self.collate([rows[place] for place in part])) for part in places]
        return self.learn_parts(model, parts, [len(part) for part in places])

    def learn_parts(self, model: Any, parts: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> Tensor:
        """Add up the gradients of a step's parts of so many rows; returns the step's loss."""
        num_items, losses = self._get_num_items_in_batch(list(parts), self.args.device), []
        is_of_step = self.model_accepts_loss_kwargs and num_items is not None
        for number, (part, size) in enumerate(zip(parts, sizes, strict=True), 1):
            with exchanging(model, is_last=number == len(parts)), self._logging(size):
                # a mean over rows weighs as many as they are; a sum over the step's tokens is whole
                share = 1.0 if is_of_step else size / sum(sizes)
                loss = self.compute_loss(model, part, num_items_in_batch=num_items) * share
                self.accelerator.backward(loss)
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _cut(self, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        at_once = self.run.at_once
        if at_once.tokens is None:
            size = self._rows_beside
            return [list(range(start, min(start + size, len(rows)))) for start in range(0, len(rows), size)]
        lengths_of = distributed.gather([num_tokens(row) for row in rows])
        return cut_alike(lengths_of, at_once.in_pairs if self.is_of_pairs else at_once)[distributed.index()]

    @contextlib.contextmanager
    def _logging(self, size: int) -> Iterator[None]:
        """Context in which what TRL logs counts `size` times: it takes means over micro-batches."""
        before = {name: len(values) for name, values in self._logged_by_trl().items()}
        yield
        for name, values in self._logged_by_trl().items():
            values.extend(values[before.get(name, 0) :] * (size - 1))

    def _logged_by_trl(self) -> dict[str, list[float]]:
        """The step's metrics so far, a number for each micro-batch."""
        kept = getattr(self, "_metrics", None) or getattr(self, "_stored_metrics", {})  # ORPO's are the latter
        found: dict[str, list[float]] = kept.get("train", {})  # there from the first micro-batch on
        return found

    def _deal_rows(self) -> None:
        """Give all processes as many tokens of a step, whose rows stand by falling length."""
        if self.run.at_once.tokens is None or distributed.count() == 1:
            return
        size = self.args.per_device_train_batch_size * distributed.count()
        order = [place for share in dealt(size, distributed.count()) for place in share]
        starts = range(0, len(self.train_dataset), size)
        self.train_dataset = self.train_dataset.select([start + place for start in starts for place in order])

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none: it names versions and paths of this machine."""

    # Sharded weights: transformers would write a checkpoint that only as many processes can read,
    # and has no public hook for its format.

    def _prepared(self, *args: Any) -> Any:
        with sharding.weights_kept(self.model, self.optimizer):
            return Accelerator.prepare(self.accelerator, *args)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Shards are saved with the optimizer's."""
        if not distributed.is_sharded():
            super().save_model(output_dir, _internal_call)
        elif output_dir is not None:
            Path(output_dir).mkdir(parents=True, exist_ok=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not distributed.is_sharded():
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_shards(Path(output_dir), self.model, self.optimizer.optimizer)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = Path(checkpoint or "")
        if checkpoint is None or not (distributed.is_sharded() or is_sharded_state(folder)):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        optimizer = self.optimizer.optimizer
        if is_sharded_state(folder):
            load_shards(folder, self.model, optimizer)
        else:
            load_optimizer_file(optimizer, folder / OPTIMIZER)
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER, weights_only=True))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint)
        if is_sharded_state(folder):
            load_shards(folder, self.model, None)
        elif distributed.is_sharded():
            for weights in folder.glob("*.safetensors"):
                sharding.read_weights_in_turn(self.model, weights)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            activate_second(self.model)

    def _sound(self, checkpoint: Path) -> Path:
        """The checkpoint of that name in the run's folder, which may have moved; all processes
        must call it. Raises DataError where it was damaged since it was sealed."""
        found = self.run.folder / checkpoint.name
        if not distributed.from_first(is_complete(found) if distributed.is_first() else None):
            raise DataError(f"{found} has the best weights and is damaged: remove {self.run.folder} and run again")
        return found
