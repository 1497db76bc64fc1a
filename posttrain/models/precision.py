"""Mixed precision: the dtype of weights and of matrix products in training.

Trained weights are float32, whatever `model.dtype` is: bfloat16 has eight significant bits, and at
a rate of 1e-6 hardly an update reaches half a step. With `bfloat16` matrix products and their
gradients are computed in it (autocast), and weights frozen beneath adapters are stored in it. A
trained weight takes 4 bytes, 4 for its gradient and the optimizer's, as much as bfloat16 with a
master copy.
"""

import copy
from types import MethodType
from typing import Any

import torch
from torch import nn

from posttrain.models.adapters import behind_adapters
from posttrain.models.params import Dtype, LoraAdapter, PretrainedModel, ScratchModel


def loaded_dtype(params: ScratchModel | PretrainedModel) -> Dtype:
    return params.dtype if isinstance(params.adapter, LoraAdapter) else "float32"


def computing_in(model: Any, dtype: Dtype) -> Any:
    """Patch a model's forward passes (whole, decoder, head) to autocast to `dtype`; copies keep
    the patch."""
    if dtype != "float32":
        model.compute_dtype = getattr(torch, dtype)
        modules = (model, model.base_model, model.get_output_embeddings())
        for module in dict.fromkeys(one for one in modules if one is not None):
            # the cache would hold a cast copy of every weight until the forward pass ends
            context = torch.autocast(model.device.type, model.compute_dtype, cache_enabled=False)
            module.forward = MethodType(context(type(module).forward), module)
    return model


def compute_dtype(model: Any) -> torch.dtype:
    inner = behind_adapters(model)
    found: torch.dtype = getattr(inner, "compute_dtype", inner.dtype)
    return found


def frozen_copy(model: Any) -> Any:
    """A copy for evaluation with equal results, its matrices in the dtype that autocast rounds
    them to."""
    copied, dtype = copy.deepcopy(model).eval().requires_grad_(False), compute_dtype(model)
    tied = copied.get_input_embeddings().weight
    for module in copied.modules():
        if isinstance(module, nn.Linear) and module.weight is not tied:
            module.to(dtype)
    return copied
