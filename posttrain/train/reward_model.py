"""Reward model: one score per episode, trained on pairs so that the better one gets the higher.

TRL's `RewardTrainer` (Bradley-Terry: P(a above b) = sigmoid(score a - score b)), a linear head on
the last token of the whole episode, tool results included, on the body of the SFT model. Scores
have no zero and no unit: only differences mean something.

With several heads each learns the order of one score of the reward (multi-objective reward models,
arXiv 2406.12845), and their weighted sum is the model's score. Heads are linear, so that a trained
model is written with that sum as its one head.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer
from trl.trainer.reward_trainer import DataCollatorForPreference

from posttrain.models import distributed
from posttrain.models.codec import TokenRow
from posttrain.models.distributed import gather, parts_of
from posttrain.models.loading import load_sound
from posttrain.models.lora import merge_adapters
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


def new_reward_model(path: Path, params: ScratchModel | PretrainedModel, *, seed: int, num_heads: int = 1) -> Any:
    """The body of the causal LM in `path` under fresh heads, ready for the trainer."""
    quantization = quantization_of(params)

    def load() -> Any:
        model = _load(path, loaded_dtype(params), quantization, num_heads)
        model = place_for_training(model) if quantization == "none" else model
        model.score.float()  # learnt whole, whatever is frozen beneath
        with torch.no_grad():
            model.score.weight.zero_()
        return movable(model, params)

    return prepared(loaded_once(load), params, seed=seed, task_type="SEQ_CLS")


def _load(path: Path, dtype: Dtype, quantization: Quantization, num_heads: int = 1) -> Any:
    how = {"num_labels": num_heads} | ({} if quantization == "none" else quantised(quantization, dtype))
    model = load_sound(AutoModelForSequenceClassification, path, dtype=dtype, new={"score.weight"}, **how)
    return model if quantization == "none" else unpacked(model)


def train_reward_model(
    model: Any,
    tokenizer: Any,
    *,
    pairs: Sequence[tuple[TokenRow, TokenRow]],
    weights: Sequence[float] = (),
    orders: Sequence[Sequence[float]] = (),
    params: TrainRewardModelParams,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place on (chosen, rejected) pairs in shuffled passes, drawn by their
    `weights` (none: all alike). `orders` are each pair's by `params.heads`, as `heads_loss` takes
    them. Resumes from `run.checkpoint`."""
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
    columns: dict[str, list[Any]] = {
        "chosen_ids": [chosen.input_ids for chosen, _ in pairs],
        "rejected_ids": [rejected.input_ids for _, rejected in pairs],
    }
    if params.heads:
        columns["orders"] = [list(one) for one in orders]
    trainer = _RewardModel(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns).select(
            drawn_by_length(lengths, weights, params.max_steps, params.batch_size, seed=seed)
        ),
        data_collator=_PairCollator(pad_token_id=tokenizer.pad_token_id),
        processing_class=tokenizer,
        optimizer_params=optimizer_params,
        run=run,
        head_weights=list(params.heads.values()),
    )
    trainer.train_or_resume()


def heads_loss(margins_N_K: Tensor, orders_N_K: Tensor, weights_K: Tensor) -> Tensor:
    """Mean over pairs of the sum over heads of weight · -log sigmoid(order · margin). A margin is
    the chosen's score less the rejected's; an order is 1 where the chosen is the better by that
    head, -1 where it is the worse, and 0 where it is neither, which costs nothing. A pair without
    any order is learnt by its weighted margin."""
    own_N = torch.where(orders_N_K != 0, -logsigmoid(orders_N_K * margins_N_K), 0.0) @ weights_K
    whole_N = -logsigmoid(margins_N_K @ weights_K)
    return torch.where((orders_N_K != 0).any(1), own_N, whole_N).mean()


def fold_heads(model: Any, weights: Sequence[float]) -> Any:
    """Replace the heads of a model by one, their weighted sum; returns the plain model."""
    model = merge_adapters(model)
    with torch.no_grad():
        summed = torch.tensor(weights, dtype=model.score.weight.dtype, device=model.device) @ model.score.weight
        model.score = torch.nn.Linear(len(summed), 1, bias=False, device=summed.device, dtype=summed.dtype)
        model.score.weight.copy_(summed[None])
    model.num_labels = model.config.num_labels = 1
    return model.eval()


def batch_scores(model: Any, token_ids_N: Sequence[Sequence[int]]) -> Tensor:
    """Scores of one batch by the first head, (N,), with their gradient where that is on."""
    return _batch_logits(model, token_ids_N)[:, 0]


def _batch_logits(model: Any, token_ids_N: Sequence[Sequence[int]]) -> Tensor:
    logits: Tensor = model(
        input_ids=pad_right(token_ids_N, model.config.pad_token_id).to(model.device),
        attention_mask=pad_right([[1] * len(ids) for ids in token_ids_N], 0).to(model.device),
    ).logits
    return logits


def score_episodes(model: Any, token_ids_N: Sequence[Sequence[int]]) -> list[float]:
    """Scores by the first head."""
    return [float(score) for score in head_scores(model, token_ids_N)[:, 0]]


def head_scores(model: Any, token_ids_N: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Scores of each head, shape (N, K)."""
    # those of one length stand together in a batch: little of it is padding
    order = np.argsort([len(token_ids) for token_ids in token_ids_N], kind="stable")
    scores = np.empty((len(token_ids_N), model.score.out_features))
    for start in range(0, len(order), SCORE_BATCH_SIZE):
        rows = order[start : start + SCORE_BATCH_SIZE]
        with torch.no_grad():
            scores[rows] = _batch_logits(model, [token_ids_N[row] for row in rows]).double().cpu().numpy()
    return scores


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

    def __init__(self, *, head_weights: Sequence[float], **kwargs: Any) -> None:
        kwargs["model"].config.num_labels = 1  # TRL refuses to train more; the head stays as wide as it is
        super().__init__(**kwargs)
        self._head_weights = torch.tensor(head_weights, device=self.args.device)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if not len(self._head_weights):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        ids, is_read = inputs["input_ids"], inputs["attention_mask"]
        chosen_N_K, rejected_N_K = model(input_ids=ids, attention_mask=is_read, use_cache=False).logits.chunk(2)
        margins_N_K = chosen_N_K - rejected_N_K
        with torch.no_grad():
            margins_N = margins_N_K @ self._head_weights
            for name, values_N in {"accuracy": (margins_N > 0).float(), "margin": margins_N}.items():
                self._metrics["train"][name].append(np.mean(gather(float(values_N.mean()))))
        return heads_loss(margins_N_K, inputs["orders"], self._head_weights)


class _PairCollator(DataCollatorForPreference):  # type: ignore[misc]  # trl is untyped
    """TRL's, which keeps the pairs' orders by head, (N, K), where they have any."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super().torch_call(examples)
        if "orders" in examples[0]:
            batch["orders"] = torch.tensor([one["orders"] for one in examples])
        return batch
