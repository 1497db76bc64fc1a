"""Builds a model of the right shapes without numbers, from its config alone, as the stages would
load it."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PretrainedConfig

from posttrain.models.params import Dtype, Quantization
from posttrain.models.quantization import HEADS

_NF4_BLOCK = 64  # weights that share a scale


def shapes_of(
    config: PretrainedConfig, dtype: Dtype, quantization: Quantization = "none", *, is_reward: bool = False
) -> Any:
    """The causal LM, or with `is_reward` the model with a head that scores; its linear layers in as
    many bits as asked for, whose numbers stand for `dtype`."""
    config = deepcopy(config)  # transformers writes into it
    config.use_cache = False
    if is_reward:
        config.num_labels, config.pad_token_id = 1, config.pad_token_id or 0
    kind = AutoModelForSequenceClassification if is_reward else AutoModelForCausalLM
    model = kind.from_config(config, dtype=getattr(torch, dtype)).eval()
    if quantization != "none":
        _quantise(model, quantization, getattr(torch, dtype))
    return model


def _quantise(model: nn.Module, kind: Quantization, dtype: torch.dtype) -> None:
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and name.rpartition(".")[2] not in HEADS:
            model.set_submodule(name, QuantisedShape(module, kind, dtype))


class QuantisedShape(nn.Linear):
    """A linear layer whose matrix takes as many bytes as bitsandbytes' does, and is made whole for
    each product, forward and backward."""

    def __init__(self, linear: nn.Linear, kind: Quantization, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.computed = linear.in_features, linear.out_features, dtype
        size = linear.weight.numel()
        packed, scales = (size // 2, size // _NF4_BLOCK) if kind == "nf4" else (size, self.out_features)
        self.weight = nn.Parameter(torch.empty(packed, dtype=torch.uint8), requires_grad=False)
        self.scales = nn.Parameter(torch.empty(scales), requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Product.apply(x.to(self.computed), self)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, layer: QuantisedShape) -> Tensor:
        context.layer = layer
        return x @ _whole(layer).T

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] @ _whole(context.layer), None


def _whole(layer: QuantisedShape) -> Tensor:
    return layer.weight.new_empty((layer.out_features, layer.in_features), dtype=layer.computed)
