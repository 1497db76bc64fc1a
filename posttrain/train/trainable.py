"""Loads a stage's model for training, whole or with fresh adapters, and saves the trained one.
Every stage folds its adapters in when it is done: the next finds a plain model, and with
adapters turned off a model in training is the one it began from, the reference of DPO and of a
KL term."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch.distributed.tensor.experimental import implicit_replication

from posttrain.models import distributed
from posttrain.models.loading import (
    atomic_folder,
    load_codec,
    load_on_cpu,
    load_quantised,
    save_model,
    save_shards_whole,
    use_gradient_checkpointing,
)
from posttrain.models.lora import add_lora, merge_adapters, round_lora_once
from posttrain.models.params import LoraAdapter, PretrainedModel, Quantization, ScratchModel
from posttrain.models.precision import bf16_rescale, computing_in, has_bf16_weights, loaded_dtype
from posttrain.models.sharding import loaded_once, place_for_training, quantization_of, sharded
from posttrain.models.token_logprobs import refuse_unknown_head


def load_trainable(
    path: Path, params: ScratchModel | PretrainedModel, *, seed: int, has_second_adapter: bool = False
) -> Any:
    """The causal LM of a folder, ready for a trainer; `seed` draws the adapters. Raises
    ConfigurationError where its logits are not what the losses would take for them."""
    quantization = quantization_of(params)
    model = loaded_once(lambda: _load(path, params, quantization))
    return prepared(model, params, seed=seed, has_second_adapter=has_second_adapter)


def prepared(
    model: Any,
    params: ScratchModel | PretrainedModel,
    *,
    seed: int,
    task_type: Literal["CAUSAL_LM", "SEQ_CLS"] = "CAUSAL_LM",
    has_second_adapter: bool = False,
) -> Any:
    """The model with what the knobs add to it, under FSDP a shard of it in each process."""
    model = computing_in(model, params.dtype)
    if params.gradient_checkpointing:
        use_gradient_checkpointing(model)
    if isinstance(params.adapter, LoraAdapter):
        model = add_lora(model, params.adapter, seed=seed, task_type=task_type, has_second=has_second_adapter)
        model = model if params.dtype == "float32" else round_lora_once(model, getattr(torch, params.dtype))
    return sharded(model)


def _load(path: Path, params: ScratchModel | PretrainedModel, quantization: Quantization) -> Any:
    if quantization != "none":
        model = load_quantised(path, quantization, dtype=params.dtype)
        refuse_unknown_head(model)
        return model
    model = load_on_cpu(path, dtype=loaded_dtype(params))
    refuse_unknown_head(model)
    return place_for_training(movable(model, params))


def movable(model: Any, params: ScratchModel | PretrainedModel) -> Any:
    """Rescale a bfloat16 model whose weights are all trained. On bfloat16's grid a change is in
    no product until it is half a step: of ten steps at a rate of 1e-6 a twentieth."""
    if isinstance(params.adapter, LoraAdapter) or params.dtype == "float32" or not has_bf16_weights(model):
        return model
    return bf16_rescale(model)


def save_trained(model: Any, tokenizer: Any, path: Path) -> None:
    """Write the model's folder atomically, adapters folded in, which uses up the model. The first
    process writes; under FSDP all must call it, and weights are written one after another."""
    if distributed.is_sharded():
        with implicit_replication():
            model = merge_adapters(model)
    with atomic_folder(path) if distributed.is_first() else nullcontext() as partial:
        if distributed.is_sharded():
            save_shards_whole(model, tokenizer, partial)
        elif partial is not None:
            save_model(merge_adapters(model), tokenizer, partial)
        if partial is not None:
            load_codec(partial)  # a folder that the next stage cannot read should fail here
