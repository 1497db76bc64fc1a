"""Loads a stage's model for training, whole or with fresh adapters, and saves the trained one.
Every stage folds its adapters in when it is done: the next finds a plain model, and with
adapters turned off a model in training is the one it began from, the reference of DPO and of a
KL term."""

from pathlib import Path
from typing import Any, Literal

import torch

from posttrain.models.loading import (
    atomic_folder,
    load_codec,
    load_on_cpu,
    load_quantised,
    save_model,
    use_gradient_checkpointing,
)
from posttrain.models.lora import add_lora, merge_adapters, round_lora_once
from posttrain.models.params import LoraAdapter, PretrainedModel, ScratchModel
from posttrain.models.precision import bf16_rescale, computing_in, has_bf16_weights, loaded_dtype
from posttrain.models.sharding import place_for_training, quantization_of
from posttrain.models.token_logprobs import refuse_unknown_head


def load_trainable(path: Path, params: ScratchModel | PretrainedModel, *, seed: int) -> Any:
    """The causal LM of a folder, ready for a trainer; `seed` draws the adapters. Raises
    ConfigurationError where its logits are not what the losses would take for them."""
    model = _load(path, params)
    refuse_unknown_head(model)
    return prepared(model, params, seed=seed)


def prepared(
    model: Any,
    params: ScratchModel | PretrainedModel,
    *,
    seed: int,
    task_type: Literal["CAUSAL_LM", "SEQ_CLS"] = "CAUSAL_LM",
) -> Any:
    model = computing_in(model, params.dtype)
    if params.gradient_checkpointing:
        use_gradient_checkpointing(model)
    if not isinstance(params.adapter, LoraAdapter):
        return model
    model = add_lora(model, params.adapter, seed=seed, task_type=task_type)
    return model if params.dtype == "float32" else round_lora_once(model, getattr(torch, params.dtype))


def _load(path: Path, params: ScratchModel | PretrainedModel) -> Any:
    if (quantization := quantization_of(params)) == "none":
        return place_for_training(movable(load_on_cpu(path, dtype=loaded_dtype(params)), params))
    return load_quantised(path, quantization, dtype=params.dtype)


def movable(model: Any, params: ScratchModel | PretrainedModel) -> Any:
    """Rescale a bfloat16 model whose weights are all trained. On bfloat16's grid a change is in
    no product until it is half a step: of ten steps at a rate of 1e-6 a twentieth."""
    if isinstance(params.adapter, LoraAdapter) or params.dtype == "float32" or not has_bf16_weights(model):
        return model
    return bf16_rescale(model)


def save_trained(model: Any, tokenizer: Any, path: Path) -> None:
    """Write the model's folder atomically, adapters folded in, which uses up the model."""
    with atomic_folder(path) as partial:
        save_model(merge_adapters(model), tokenizer, partial)
        load_codec(partial)  # a folder that the next stage cannot read should fail here
