"""Holds the frozen weights beneath adapters in eight or four bits (bitsandbytes), and finds again
what they stand for.

A block of quantised weights is whole numbers times one scale: LLM.int8() (arXiv 2208.07339) keeps a
row in eight bits and what sticks out in sixteen, NF4 (QLoRA, arXiv 2305.14314) in four bits whose
steps are those of a normal distribution. Adapters are folded into what was computed with, and so
into these numbers and not into those that they were rounded from.
"""

import copy
import importlib
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posttrain.models.params import Dtype
from posttrain.models.placement import device
from posttrain.runtime.exits import ConfigurationError

_QUANTISED = ("Linear4bit", "Linear8bitLt")
HEADS = ["lm_head", "score"]  # stay as they are


def quantised(kind: Literal["int8", "nf4"], computed: Dtype) -> dict[str, Any]:
    """The arguments with which transformers loads a model so, where models live here. Raises
    ConfigurationError where bitsandbytes is missing."""
    bitsandbytes_for(f"model.adapter.quantization is {kind}")  # transformers would say so with a traceback
    from transformers import BitsAndBytesConfig

    how = {"load_in_8bit": True} if kind == "int8" else {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    config = BitsAndBytesConfig(**how, bnb_4bit_compute_dtype=getattr(torch, computed), llm_int8_skip_modules=HEADS)
    return {"quantization_config": config, "device_map": {"": device()}}


def bitsandbytes_for(reason: str) -> Any:
    """The package. Raises ConfigurationError where it is missing, naming the knob that wants it."""
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise ConfigurationError(
            f"{reason}, and the package bitsandbytes is missing: pip install 'posttrain[quantized]'"
        ) from error


def unpacked(model: Any) -> Any:
    """The model, whose four bits stay as they are. On processors with bfloat16 instructions
    bitsandbytes packs them anew at the first evaluation, with scales rounded to bfloat16: neither
    what was learnt on nor what PEFT and an engine read."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def is_quantised(module: Any) -> bool:
    """Whether it is a linear layer whose matrix is in fewer bits; adapters on one are not."""
    kind = type(module)
    return kind.__module__.startswith("bitsandbytes.") and kind.__name__ in _QUANTISED


def dense_weight(linear: nn.Module) -> Tensor:
    """The matrix (out, in) of a linear layer, of a quantised one the numbers that it stands for."""
    weight: Any = linear.weight
    if is_quantised(linear):
        from peft.utils.integrations import dequantize_module_weight

        with torch.no_grad():
            weight = dequantize_module_weight(linear)
    found: Tensor = weight.detach()
    return found


def without_quantisation(model: Any) -> Any:
    """A model of the same weights, all of them dense by now, in single precision, that knows
    nothing of how they were kept; the one given refuses to be saved."""
    config = copy.deepcopy(model.config)
    del config.quantization_config
    config.name_or_path = ""
    plain = type(model)(config).float()
    plain.load_state_dict(model.state_dict())
    return plain.eval()
