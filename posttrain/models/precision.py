"""Says in which precision a model in training computes, the one place that does.

Weights that are trained are float32, whatever `model.dtype` is: a bfloat16 number keeps eight bits,
and at a learning rate of 1e-6 hardly an update reaches half the distance to the next one. With
`bfloat16` their matrix products are computed in it (autocast) and so are the gradients of those;
what is frozen beneath adapters is kept in it, too. Per trained weight that is 4 bytes, 4 of its
gradient and what the optimizer keeps, as with a bfloat16 weight and gradient and a float32 master.
"""

import copy
from types import MethodType
from typing import Any

import torch
from torch import nn

from posttrain.models.adapted import behind_adapters
from posttrain.models.params import Dtype, LoraAdapter, PretrainedModel, ScratchModel


def loaded_dtype(params: ScratchModel | PretrainedModel) -> Dtype:
    """Of the weights that a training begins from."""
    return params.dtype if isinstance(params.adapter, LoraAdapter) else "float32"


def computing_in(model: Any, dtype: Dtype) -> Any:
    """`model`, whose whole forward pass, decoder and head now compute in `dtype`, each called by
    itself as well. A copy of it does so, too."""
    if dtype != "float32":
        model.compute_dtype = getattr(torch, dtype)
        modules = (model, model.base_model, model.get_output_embeddings())
        for module in dict.fromkeys(one for one in modules if one is not None):
            # without a cache, which would hold all casts of a forward pass to its end
            context = torch.autocast(model.device.type, model.compute_dtype, cache_enabled=False)
            module.forward = MethodType(context(type(module).forward), module)
    return model


def compute_dtype(model: Any) -> torch.dtype:
    """What the matrix products of a model are computed in."""
    inner = behind_adapters(model)
    found: torch.dtype = getattr(inner, "compute_dtype", inner.dtype)
    return found


def frozen_copy(model: Any) -> Any:
    """For evaluation only, with the same results: of matrices the type that they are computed in,
    which is what they are rounded to anyway."""
    copied, dtype = copy.deepcopy(model).eval().requires_grad_(False), compute_dtype(model)
    tied = copied.get_input_embeddings().weight
    for module in copied.modules():
        if isinstance(module, nn.Linear) and module.weight is not tied:
            module.to(dtype)
    return copied
