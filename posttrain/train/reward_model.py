"""Reward model: one score per episode, trained on pairs so that the better one gets the higher.

TRL's `RewardTrainer` (Bradley-Terry: P(a above b) = sigmoid(score a - score b)), a linear head on
the last token of the whole episode, tool results included, on the body of the SFT model. Scores
have no zero and no unit: only differences mean something.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

from posttrain.models import distributed
from posttrain.models.codec import TokenRow
from posttrain.models.distributed import parts_of
from posttrain.models.loading import load_sound
from posttrain.models.params import Dtype, OptimizerParams, PretrainedModel, Quantization, ScratchModel
from posttrain.models.precision import loaded_dtype
from posttrain.models.quantization import quantised, unpacked
from posttrain.models.sharding import loaded_once, place_for_training, quantization_of, sharded
from posttrain.models.token_logprobs import pad_right
from posttrain.train.params import TrainRewardModelParams
from posttrain.train.resumable_trainer import Resumable, TrainingRun, trainer_arguments
from posttrain.train.sample_order import drawn_by_length
from posttrain.train.trainable import movable, prepared

SCORE_BATCH_SIZE = 64


def load_reward_model(path: Path, *, dtype: Dtype = "float32") -> Any:
    """The reward model of a folder, in evaluation mode. From a causal LM's folder: its body
    under a head of zeros, as a head drawn at random would begin with an opinion."""
    return distributed.to_device(_load(path, dtype, "none"))


def load_shared_model(path: Path, *, dtype: Dtype = "float32") -> Any:
    """The same for processes that score together: under FSDP sharded."""
    if not distributed.is_sharded():
        return load_reward_model(path, dtype=dtype)
    return sharded(loaded_once(lambda: _load(path, dtype, "none")))


def new_reward_model(path: Path, params: ScratchModel | PretrainedModel, *, seed: int) -> Any:
    """The body of the causal LM in `path` under a fresh head, ready for the trainer."""
    quantization = quantization_of(params)

    def load() -> Any:
        model = _load(path, loaded_dtype(params), quantization)
        model = place_for_training(model) if quantization == "none" else model
        model.score.float()  # learnt whole, whatever is frozen beneath
        with torch.no_grad():
            model.score.weight.zero_()
        return movable(model, params)

    return prepared(loaded_once(load), params, seed=seed, task_type="SEQ_CLS")


def _load(path: Path, dtype: Dtype, quantization: Quantization) -> Any:
    how = {} if quantization == "none" else quantised(quantization, dtype)
    model = load_sound(AutoModelForSequenceClassification, path, dtype=dtype, new={"score.weight"}, num_labels=1, **how)
    return unpacked(model) if how else model


def train_reward_model(
    model: Any,
    tokenizer: Any,
    *,
    pairs: Sequence[tuple[TokenRow, TokenRow]],
    weights: Sequence[float] = (),
    params: TrainRewardModelParams,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place on (chosen, rejected) pairs in shuffled passes, drawn by their
    `weights` (none: all alike). Resumes from `run.checkpoint`."""
    num_parts, pairs_per_part = parts_of(params.batch_size, "train_reward_model.batch_size", run.at_once.in_pairs)
    lengths = [max(len(row.input_ids) for row in pair) for pair in pairs]
    optimizer_params = OptimizerParams(lr=params.lr, optimizer="adamw")
    arguments = RewardConfig(
        **trainer_arguments(
            run,
            model,
            optimizer_params,
            max_steps=params.max_steps,
            checkpoint_every_steps=params.checkpoint_every_steps,
            seed=seed,
        ),
        per_device_train_batch_size=pairs_per_part,
        gradient_accumulation_steps=num_parts,
        max_length=None,
    )
    columns = {
        "chosen_ids": [chosen.input_ids for chosen, _ in pairs],
        "rejected_ids": [rejected.input_ids for _, rejected in pairs],
    }
    trainer = _RewardModel(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns).select(
            drawn_by_length(lengths, weights, params.max_steps, params.batch_size, seed=seed)
        ),
        processing_class=tokenizer,
        optimizer_params=optimizer_params,
        run=run,
    )
    trainer.train_or_resume()


def batch_scores(model: Any, token_ids_N: Sequence[Sequence[int]]) -> Tensor:
    """Scores of one batch, (N,), with their gradient where that is on."""
    logits: Tensor = model(
        input_ids=pad_right(token_ids_N, model.config.pad_token_id).to(model.device),
        attention_mask=pad_right([[1] * len(ids) for ids in token_ids_N], 0).to(model.device),
    ).logits
    return logits[:, 0]


def score_episodes(model: Any, token_ids_N: Sequence[Sequence[int]]) -> list[float]:
    # those of one length stand together in a batch: little of it is padding
    order = np.argsort([len(token_ids) for token_ids in token_ids_N], kind="stable")
    scores = np.empty(len(token_ids_N))
    for start in range(0, len(order), SCORE_BATCH_SIZE):
        rows = order[start : start + SCORE_BATCH_SIZE]
        with torch.no_grad():
            scores[rows] = batch_scores(model, [token_ids_N[row] for row in rows]).double().cpu().numpy()
    return [float(score) for score in scores]


class _RewardModel(Resumable, RewardTrainer):  # type: ignore[misc]  # trl is untyped
    """RewardTrainer on pairs that are token ids already."""

    is_of_pairs: ClassVar = True
    logged: ClassVar[Mapping[str, str]] = {
        "loss": "loss",
        "learning_rate": "lr",
        "grad_norm": "grad_norm",
        "accuracy": "pair_accuracy",
        "margin": "margin",
    }
