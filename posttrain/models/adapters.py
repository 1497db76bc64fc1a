"""Looks beneath LoRA adapters: the plain model, and a linear layer's matrix with adapters added.

PEFT is known by its methods only: importing it takes a second, and it need not be installed.
"""

from typing import Any

from torch import Tensor, nn

from posttrain.models.quantization import dense_weight, is_quantised
from posttrain.runtime.exits import ConfigurationError


def is_adapted(model: Any) -> bool:
    return hasattr(model, "get_base_model")


def is_adapted_layer(module: Any) -> bool:
    return hasattr(module, "get_delta_weight")


def behind_adapters(model: Any) -> Any:
    """The causal LM beneath the adapters, or the model itself."""
    return model.get_base_model() if is_adapted(model) else model


def dense(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight (out, in) and bias of a linear layer, dequantised, active adapters added."""
    lora: Any = module
    linear = lora.base_layer if is_adapted_layer(module) else lora
    if type(linear) is not nn.Linear and not is_quantised(linear):
        raise ConfigurationError(
            f"a projection of this model is a {type(linear).__name__}, not a plain linear layer. Let vLLM play it: "
            "POSTTRAIN_ENGINE=vllm, docs/serve.md"
        )
    weight = dense_weight(linear)
    bias = None if linear.bias is None else linear.bias.detach().clone()
    if linear is module or lora.merged or lora.disable_adapters:
        return weight, bias
    for adapter in (name for name in lora.active_adapters if name in lora.lora_A):
        weight = weight + lora.get_delta_weight(adapter).detach()
    return weight, bias


def dense_layer(module: nn.Module) -> nn.Linear:
    """A plain layer in float32 that computes the same as `module`."""
    weight, bias = dense(module)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.float(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.float(), requires_grad=False)
    return layer
