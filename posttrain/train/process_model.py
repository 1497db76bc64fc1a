"""Process reward model: the chance of strict success in each state of an episode, trained on
Monte-Carlo shares by binary cross-entropy (soft labels, Math-Shepherd, arXiv 2312.08935).

A linear head on the body of the SFT model, the reward model's class: its head reads every token in
one pass, and the logits are taken where a state is (`process_labels`), at the last token that the
agent has read. So a turn's value knows the results that it caused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import TrainingArguments

from posttrain.models.adapters import behind_adapters
from posttrain.models.distributed import gather, parts_of, share_rows
from posttrain.models.params import OptimizerParams
from posttrain.models.token_logprobs import IGNORED, pad_right
from posttrain.train.advantages.groups import FloatArray
from posttrain.train.params import TrainProcessModelParams
from posttrain.train.resumable_trainer import Resumable, TrainingRun, trainer_arguments
from posttrain.train.reward_model import SCORE_BATCH_SIZE
from posttrain.train.sample_order import passes_by_length
from posttrain.types import Trajectory


@dataclass(frozen=True, slots=True)
class StateRow:
    """An episode's tokens, the places of its K + 1 states among them, and their labels, NaN where
    there is none."""

    input_ids: Sequence[int]
    places: Sequence[int]
    labels: Sequence[float]


def state_places(trajectory: Trajectory) -> list[int]:
    """The token before each of the agent's messages, and its last one. The agent wrote tokens 2
    and 5 of seven: 1, 4, 5. None without a token of the agent's."""
    mask_T = np.asarray(trajectory.mask, dtype=np.int64)
    starts, written = np.flatnonzero(np.diff(mask_T, prepend=0) == 1), np.flatnonzero(mask_T)
    return [*np.maximum(starts - 1, 0).tolist(), *written[-1:].tolist()]


def state_row(trajectory: Trajectory, labels: FloatArray) -> StateRow:
    return StateRow(trajectory.token_ids, state_places(trajectory), labels.tolist())


def train_process_model(
    model: Any,
    tokenizer: Any,
    *,
    rows: Sequence[StateRow],
    params: TrainProcessModelParams,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model`, a new reward model, in place on rows used in shuffled passes; the loss is a
    mean over a step's labelled states. Resumes from `run.checkpoint`."""
    num_parts, rows_per_part = parts_of(params.batch_size, "train_process_model.batch_size", run.rows_at_once)
    optimizer_params = OptimizerParams(lr=params.lr, optimizer="adamw")
    arguments = TrainingArguments(
        **trainer_arguments(
            run,
            model,
            optimizer_params,
            max_steps=params.max_steps,
            checkpoint_every_steps=params.checkpoint_every_steps,
            seed=seed,
        ),
        per_device_train_batch_size=rows_per_part,
        gradient_accumulation_steps=num_parts,
    )
    order = passes_by_length([len(row.input_ids) for row in rows], params.max_steps, params.batch_size, seed=seed)
    columns = {"input_ids": [list(row.input_ids) for row in rows], "labels": [_token_labels(row) for row in rows]}
    trainer = _ProcessModel(
        whole=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns).select(order),
        data_collator=lambda batch: _collated(batch, tokenizer.pad_token_id),
        processing_class=tokenizer,
        optimizer_params=optimizer_params,
        run=run,
    )
    trainer.train_or_resume()


def state_values(model: Any, episodes: Sequence[Trajectory]) -> list[FloatArray]:
    """The chance of strict success in each state of each episode, (K + 1,), each process computing
    its share. All processes must call it."""
    own, found = share_rows(episodes), list[FloatArray]()
    for start in range(0, len(own), SCORE_BATCH_SIZE):
        part = own[start : start + SCORE_BATCH_SIZE]
        ids_N_T = pad_right(
            [list(one.token_ids) or [model.config.pad_token_id] for one in part], model.config.pad_token_id
        )
        with torch.no_grad():
            values_N_T = _logits(model, ids_N_T.long().to(model.device)).double().sigmoid().cpu().numpy()
        found += [values_T[state_places(one)] for values_T, one in zip(values_N_T, part, strict=True)]
    return [values for of_process in gather(found) for values in of_process]


def _logits(model: Any, input_ids_N_T: Tensor) -> Tensor:
    """The head's logit at each token, (N, T): caught in the whole model's forward pass, where
    processes exchange gradients and shards. Rows are padded on the right, where no token looks."""
    caught: list[Tensor] = []
    head = behind_adapters(getattr(model, "module", model)).score
    hook = head.register_forward_hook(lambda _, __, logits: caught.append(logits[..., 0]))
    try:
        model(input_ids=input_ids_N_T, use_cache=False)
    finally:
        hook.remove()
    return caught[0].float()


def _token_labels(row: StateRow) -> list[float]:
    """`IGNORED` but where a labelled state is."""
    labels = [float(IGNORED)] * len(row.input_ids)
    for place, label in zip(row.places, row.labels, strict=True):
        labels[place] = IGNORED if np.isnan(label) else label
    return labels


def _collated(rows: Sequence[Mapping[str, Any]], pad_id: int) -> dict[str, Tensor]:
    labels_N_T = pad_right([row["labels"] for row in rows], IGNORED).float()
    return {"input_ids": pad_right([row["input_ids"] for row in rows], pad_id).long(), "labels": labels_N_T}


class _ProcessModel(Resumable):
    """A Trainer whose loss is of the labelled states."""

    logged: ClassVar[Mapping[str, str]] = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm"}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # the loss is through the labels of the whole step, which the trainer then counts
        self.model_accepts_loss_kwargs = True

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        assert num_items_in_batch is not None
        assert not return_outputs
        labels_N_T = inputs["labels"]
        is_labelled_N_T = labels_N_T != IGNORED
        logits = _logits(model, inputs["input_ids"])[is_labelled_N_T]
        summed = binary_cross_entropy_with_logits(logits, labels_N_T[is_labelled_N_T], reduction="sum")
        # mean over the whole step, times the processes over which gradients are averaged
        loss: Tensor = summed / num_items_in_batch * self.accelerator.num_processes
        return loss
