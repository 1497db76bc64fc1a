"""Low-rank adapters: train a few matrices beside a frozen model, and fold them in when done.

W' = W + (alpha / r) B A with A (r, in) drawn at random and B (out, r) zero (LoRA, arXiv
2106.09685), so that training starts from the model itself.
"""

from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from posttrain.models.adapted import behind_adapters, is_adapted_layer
from posttrain.models.bf16_rescale import off_grid
from posttrain.models.dense import dense_layer
from posttrain.models.params import LoraAdapter
from posttrain.models.precision import compute_dtype
from posttrain.models.quantization import is_quantised, without_quantisation
from posttrain.runtime.exits import ConfigurationError


def add_lora(
    model: Any, params: LoraAdapter, *, seed: int, task_type: Literal["CAUSAL_LM", "SEQ_CLS"] = "CAUSAL_LM"
) -> Any:
    """The model with adapters on every linear layer whose name ends with one of `target_modules`;
    only they are trainable, and a `SEQ_CLS` head.

    Raises ConfigurationError where a target is in no layer's name: peft alone accepts a list of
    which only one is found.
    """
    ends = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    if missing := [target for target in params.target_modules if target.rpartition(".")[2] not in ends]:
        raise ConfigurationError(
            f"model.adapter.target_modules has {', '.join(missing)}, "
            f"but this model's linear layers are {', '.join(sorted(ends))}: "
            "an adapter that attaches to nothing trains nothing. Correct the names"
        )
    config = LoraConfig(
        r=params.r,
        lora_alpha=params.alpha,
        lora_dropout=params.dropout,
        target_modules=params.target_modules,
        task_type=task_type,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def merge_adapters(model: Any) -> Any:
    """The plain model with the adapters folded into its weights (the model given is used up), in
    single precision: a bfloat16 base would lose most of what they add, a quantised one all. Where
    products were in bfloat16, and so will be those of who reads it, it is `off_grid`. A model
    without adapters as it is."""
    if not isinstance(model, PeftModel):
        return model
    merged = _merged(model)
    return merged if compute_dtype(merged) == torch.float32 else off_grid(merged)


def _merged(model: Any) -> Any:
    causal_lm = behind_adapters(model)
    _untie_adapted_head(causal_lm)
    if not getattr(causal_lm, "is_quantized", False):
        return model.float().merge_and_unload()
    for name, module in list(causal_lm.named_modules()):
        if is_quantised(getattr(module, "base_layer", module)) and not name.endswith(".base_layer"):
            causal_lm.set_submodule(name, dense_layer(module))
    return without_quantisation(model.merge_and_unload())


def _untie_adapted_head(causal_lm: Any) -> None:
    """Give an output matrix with adapters numbers of its own where it is the embedding as well,
    which the same sum would change, and nobody trained it for that."""
    head: Any = getattr(causal_lm, "get_output_embeddings", lambda: None)()
    if not is_adapted_layer(head) or head.base_layer.weight is not causal_lm.get_input_embeddings().weight:
        return
    head.base_layer.weight = torch.nn.Parameter(head.base_layer.weight.detach().clone(), requires_grad=False)
    causal_lm.config.get_text_config().tie_word_embeddings = causal_lm.config.tie_word_embeddings = False
    causal_lm.all_tied_weights_keys = {}  # else saving leaves the head out
