"""Quantises the frozen weights beneath adapters to 8 or 4 bits (bitsandbytes), and dequantises
them.

A block of quantised weights is integers times one scale: LLM.int8() (arXiv 2208.07339) keeps a
row's outliers in 16 bits, NF4 (QLoRA, arXiv 2305.14314) has 4 bits on the quantiles of a normal
distribution. Adapters are merged into the dequantised weights, with which they were trained.
"""

import copy
import importlib
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posttrain.models.distributed import device
from posttrain.models.params import Dtype
from posttrain.runtime.exits import ConfigurationError

_QUANTISED = ("Linear4bit", "Linear8bitLt")
HEADS = ["lm_head", "score"]  # never quantised


def quantised(kind: Literal["int8", "nf4"], computed: Dtype) -> dict[str, Any]:
    """Arguments of `from_pretrained` that load a model quantised, onto `device()`."""
    bitsandbytes_for(f"model.adapter.quantization is {kind}")  # transformers would fail with a traceback
    from transformers import BitsAndBytesConfig

    how = {"load_in_8bit": True} if kind == "int8" else {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    config = BitsAndBytesConfig(**how, bnb_4bit_compute_dtype=getattr(torch, computed), llm_int8_skip_modules=HEADS)
    return {"quantization_config": config, "device_map": {"": device()}}


def bitsandbytes_for(reason: str) -> Any:
    """The package bitsandbytes, which the knob `reason` needs."""
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise ConfigurationError(
            f"{reason}, and the package bitsandbytes is missing: pip install 'posttrain[quantized]'"
        ) from error


def unpacked(model: Any) -> Any:
    """The model, whose 4-bit weights keep their layout. On CPUs with bfloat16 instructions
    bitsandbytes repacks them with rounded scales: other weights, which neither PEFT nor the
    engine reads."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def is_quantised(module: Any) -> bool:
    """True for a quantised linear layer; not for a LoRA layer around one."""
    kind = type(module)
    return kind.__module__.startswith("bitsandbytes.") and kind.__name__ in _QUANTISED


def dense_weight(linear: nn.Module) -> Tensor:
    weight: Any = linear.weight
    if is_quantised(linear):
        from peft.utils.integrations import dequantize_module_weight

        with torch.no_grad():
            weight = dequantize_module_weight(linear)
    found: Tensor = weight.detach()
    return found


def without_quantisation(model: Any) -> Any:
    """A float32 model with the given one's weights, all dense by now, and no quantization
    config, with which transformers refuses to save."""
    config = copy.deepcopy(model.config)
    del config.quantization_config
    config.name_or_path = ""
    plain = type(model)(config).float()
    plain.load_state_dict(model.state_dict())
    return plain.eval()
