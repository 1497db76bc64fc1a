"""LoRA adapters (arXiv 2106.09685): adds them to a model and merges them into its weights.

W' = W + (alpha / r) B A, with A (r, in) drawn at random and B (out, r) zero, so that training
starts from the model itself. In bfloat16 the layers compute W x + s B A x as one product, [W, s B]
[x, A x], summed in float32 and rounded once. PEFT rounds W x first: a young adapter's term is below
half a step of bfloat16 there and mostly lost.
"""

import json
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from posttrain.models.adapters import behind_adapters, dense_layer
from posttrain.models.params import LoraAdapter
from posttrain.models.precision import bf16_rescale, compute_dtype
from posttrain.models.quantization import dense_weight, is_quantised, without_quantisation
from posttrain.runtime.exits import ConfigurationError, DataError

SECOND = "second"  # its adapter's name in PEFT, whose name for the first is "default"


def add_lora(
    model: Any,
    params: LoraAdapter,
    *,
    seed: int,
    task_type: Literal["CAUSAL_LM", "SEQ_CLS"] = "CAUSAL_LM",
    has_second: bool = False,
) -> Any:
    """The model with adapters on every linear layer whose name ends with one of `target_modules`;
    only they, and a `SEQ_CLS` head, are trainable. With `has_second` each layer has two, which are
    added up.

    Raises ConfigurationError where a target matches no layer (PEFT is content with one match), or
    the head: merged into a tied one, adapters would change the embedding.
    """
    layers = {name.rpartition(".")[2]: one for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    ends = {name for name, layer in layers.items() if layer is not model.get_output_embeddings()}
    if missing := [target for target in params.target_modules if target.rpartition(".")[2] not in ends]:
        raise ConfigurationError(
            f"model.adapter.target_modules has {', '.join(missing)}, "
            f"but this model's linear layers are {', '.join(sorted(ends))}: "
            "an adapter that attaches to nothing trains nothing. Correct the names"
        )
    rank, targets = {"r": params.r, "lora_alpha": params.alpha}, params.target_modules
    config = LoraConfig(**rank, lora_dropout=params.dropout, target_modules=targets, task_type=task_type)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = get_peft_model(model, config)
        if has_second:
            adapted.add_adapter(SECOND, config)
            activate_second(adapted)
        return adapted


def activate_second(model: Any) -> None:
    """Turn on the second adapters beside the first, trainable, where a model has them; transformers
    loads a checkpoint and leaves the first alone on."""
    if isinstance(model, PeftModel) and SECOND in model.peft_config:
        model.base_model.set_adapter(["default", SECOND])


def load_adapter(model: Any, folder: Path) -> None:
    """Load the adapter of a folder in PEFT's format (config and safetensors) into the adapted
    `model`. Raises DataError where it is not of exactly the same layers, shapes, rank and alpha:
    it would be merged into something that nobody trained."""
    own, config = model.peft_config["default"], json.loads((folder / "adapter_config.json").read_text("utf-8"))
    weights, expected = load_file(folder / "adapter_model.safetensors"), get_peft_model_state_dict(model)
    shapes = [{name: tuple(one.shape) for name, one in each.items()} for each in (weights, expected)]
    differing = sorted(name for name in shapes[0] | shapes[1] if shapes[0].get(name) != shapes[1].get(name))
    for name, wanted in {"r": own.r, "lora_alpha": own.lora_alpha, "use_rslora": False, "use_dora": False}.items():
        if (found := config.get(name, False)) != wanted:
            raise DataError(
                f"the adapter of {folder.name} has {name} {found}, and model.adapter asks for {wanted}: take the same"
            )
    if differing:
        raise DataError(
            f"the adapter of {folder.name} has {len(differing)} weights otherwise than model.adapter.target_modules "
            f"asks for, such as {differing[0]}: name the layers that were trained"
        )
    if broken := [name for name, one in weights.items() if not one.isfinite().all()]:
        raise DataError(f"{', '.join(broken[:3])} of the adapter are not all finite numbers: the training has diverged")
    set_peft_model_state_dict(model, weights)


def split_by_adapter(model: Any) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The weights of the first adapter, and of the second."""
    named = [(name, one) for name, one in model.named_parameters() if "lora_" in name]
    second = [one for name, one in named if f".{SECOND}." in name]
    return [one for name, one in named if f".{SECOND}." not in name], second


def merge_adapters(model: Any) -> Any:
    """The plain model with the adapters merged into its weights, which uses up the given one.
    The weights are float32: in bfloat16 or quantised, most of what adapters add would be lost. A
    model that computed in bfloat16 is rescaled (`bf16_rescale`)."""
    if not isinstance(model, PeftModel):
        return model
    merged = _merged(model)
    return merged if compute_dtype(merged) == torch.float32 else bf16_rescale(merged)


def round_lora_once(model: Any, dtype: torch.dtype) -> Any:
    """Patch LoRA layers on plain and 4-bit matrices to compute one product in `dtype`. 8-bit
    layers are left alone: their product rounds x, too."""
    for module in model.modules():
        base = getattr(module, "base_layer", None)
        if isinstance(base, nn.Linear) and (type(base) is nn.Linear or type(base).__name__ == "Linear4bit"):
            module.compute_dtype = dtype
            module.forward = MethodType(_forward, module)
    return model


def _merged(model: Any) -> Any:
    causal_lm = behind_adapters(model)
    if not getattr(causal_lm, "is_quantized", False):
        return model.float().merge_and_unload()
    for name, module in list(causal_lm.named_modules()):
        if is_quantised(getattr(module, "base_layer", module)) and not name.endswith(".base_layer"):
            causal_lm.set_submodule(name, dense_layer(module))
    return without_quantisation(model.merge_and_unload())


def _forward(self: Any, x: Tensor) -> Tensor:
    """All active adapters, as one of their ranks together."""
    if self.disable_adapters or self.merged:
        plain: Tensor = type(self).forward(self, x)
        return plain
    names, x = self.active_adapters, x.to(self.compute_dtype)
    lows = [functional.linear(self.lora_dropout[name](x), self.lora_A[name].weight.to(x.dtype)) for name in names]
    ups = [(self.lora_B[name].weight * self.scaling[name]).to(x.dtype) for name in names]
    summed: Tensor = _Product.apply(x, torch.cat(lows, -1), torch.cat(ups, -1), self.base_layer)  # type: ignore[no-untyped-call]
    return summed


class _Product(torch.autograd.Function):
    """[W, s B] [x, A x] of x (…, in), A x (…, r), s B (out, r) and a frozen W (out, in).
    Autograd's own would keep the concatenated matrix for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: Tensor, up: Tensor, base: nn.Linear) -> Tensor:
        ctx.save_for_backward(low, up)
        ctx.base = base
        weight = torch.cat([dense_weight(base).to(x.dtype), up], dim=1)
        bias = None if base.bias is None else base.bias.to(x.dtype)
        return functional.linear(torch.cat([x, low], dim=-1), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        # y = W x + up low: the gradients are Wᵀ dy, upᵀ dy and dy lowᵀ, rows of a batch summed
        low, up = ctx.saved_tensors
        of_x = grad @ dense_weight(ctx.base).to(grad.dtype) if ctx.needs_input_grad[0] else None
        return of_x, grad @ up, grad.flatten(0, -2).T @ low.flatten(0, -2), None
