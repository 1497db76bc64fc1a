"""A linear layer as one matrix, whatever it is made of: adapters added, quantised weights as the
numbers that they stand for."""

from typing import Any

from torch import Tensor, nn

from posttrain.models.adapted import is_adapted_layer
from posttrain.models.quantization import dense_weight, is_quantised
from posttrain.runtime.exits import ConfigurationError


def dense(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight (out, in) and bias, with the active LoRA adapters added. PEFT is known by its methods
    only, so that it need not be installed. Raises ConfigurationError where they are no such sum."""
    lora: Any = module
    linear = lora.base_layer if is_adapted_layer(module) else lora
    _require(
        type(linear) is nn.Linear or is_quantised(linear),
        f"a projection is a {type(linear).__name__}, not a plain linear layer",
    )
    weight = dense_weight(linear)
    bias = None if linear.bias is None else linear.bias.detach().clone()
    if linear is module or lora.merged or lora.disable_adapters:
        return weight, bias
    for adapter in lora.active_adapters:
        if adapter in lora.lora_A:
            _require(
                not lora.use_dora.get(adapter, False), f"adapter {adapter!r} is a DoRA, which is not a sum of matrices"
            )
            _require(not lora.lora_bias.get(adapter, False), f"adapter {adapter!r} trains a bias")
            weight = weight + lora.get_delta_weight(adapter).detach()
    return weight, bias


def dense_layer(module: nn.Module) -> nn.Linear:
    """The same as a layer of its own, in single precision."""
    weight, bias = dense(module)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.float(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.float(), requires_grad=False)
    return layer


def _require(is_so: bool, problem: str) -> None:
    if not is_so:
        raise ConfigurationError(
            f"this model is not made of plain matrices: {problem}. Let vLLM play it: POSTTRAIN_ENGINE=vllm, "
            "docs/serve.md"
        )
