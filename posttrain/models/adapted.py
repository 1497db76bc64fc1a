"""Tells a model with adapters from one without, and finds the one behind; without peft, which takes
a second to import."""

from typing import Any


def is_adapted(model: Any) -> bool:
    """Whether a LoRA adapter is trained on it."""
    return hasattr(model, "get_base_model")


def is_adapted_layer(module: Any) -> bool:
    """Whether a linear layer has adapters."""
    return hasattr(module, "get_delta_weight")


def behind_adapters(model: Any) -> Any:
    """The causal language model that adapters were put on; itself where there are none."""
    return model.get_base_model() if is_adapted(model) else model
