"""Reads the config of the model that the knobs name, and builds a model of its shapes without
numbers, as the stages would load it."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PretrainedConfig

from posttrain.config.params import Params
from posttrain.models.params import Dtype, PretrainedModel, Quantization, local_config, read_config
from posttrain.models.quantization import HEADS
from posttrain.models.scratch import scratch_config
from posttrain.runtime.exits import ConfigurationError

_NF4_BLOCK = 64  # weights that share a scale


def model_config(params: Params, *, folder: Path | None = None, root: Path = Path()) -> PretrainedConfig:
    """Config of the model in `folder`, or else of the knobs' model, whose name leads from `root`.
    Raises ConfigurationError where there is none on this machine."""
    model = params.model
    if folder is not None:
        return _config_of(str(folder), lambda: read_config(folder / "config.json"))
    if isinstance(model, PretrainedModel):
        return _config_of(model.name, lambda: local_config(model, root=root))
    return scratch_config(model, vocab_size=model.vocab_size, max_context_tokens=params.agent.max_context_tokens)


def _config_of(name: str, read: Callable[[], dict[str, Any]]) -> PretrainedConfig:
    try:
        if not (found := read()):
            raise ConfigurationError(
                f"model.name = {name!r} is not on this machine: name a folder that has its config.json (--model)"
            )
        return AutoConfig.for_model(**found)
    except ConfigurationError:
        raise
    except Exception as error:  # a stranger's config may end transformers anywhere
        raise ConfigurationError(f"no model can be made of the config of {name!r}: {error}") from error


def shapes_of(
    config: PretrainedConfig, dtype: Dtype, quantization: Quantization = "none", *, is_reward: bool = False
) -> Any:
    """The causal LM, or reward model, without numbers; quantised layers compute in `dtype`."""
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
    """A linear layer of bitsandbytes' size, whose matrix is made whole for each product."""

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
