"""Knobs of the sections `model` and `prepare_model`: architecture, adapter, precision."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from posttrain.models.micro_batches import AtOnce
from posttrain.runtime.knobs import SLIP, Decay, Rate, Section, SmallCount, nearest

# Architectures (`model_type`) with the linear layers below; models from scratch are Qwen3s. A test
# builds all and compares.
LIKE_QWEN3 = ("llama", "mistral", "qwen2", "qwen3")
LINEAR_LAYERS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


Quantization = Literal["none", "int8", "nf4"]
OptimizerKind = Literal["muon", "adamw", "adamw_8bit"]
Schedule = Literal["linear", "constant", "cosine"]
Dtype = Literal["float32", "bfloat16"]
# size of a micro-batch of training; None: a quarter of a process's share of a step, online an
# eighth
RowsAtOnce = Annotated[int, Field(ge=1, le=100_000, description=SLIP)] | None
# of a micro-batch, padding included, instead of a number of rows or beside it
TokensAtOnce = Annotated[int, Field(ge=2, le=1_000_000_000, description=SLIP)] | None


BETAS, MAX_GRAD_NORM = (0.9, 0.95), 1.0


class OptimizerParams(Section):
    """The optimizer and its learning rate. What has a default may be left out.

    Gradients are scaled down to a norm of `max_grad_norm`. `betas` are AdamW's; `weight_decay` is
    that of matrices, as transformers' is. The rate rises from 0 to `lr` over the first
    `lr_warmup_frac` of the steps; from there on it falls to 0 (`linear`, or `cosine` by half a
    wave), or stays (`constant`).
    """

    lr: Rate
    optimizer: OptimizerKind
    max_grad_norm: Annotated[float, Field(gt=0)] = MAX_GRAD_NORM
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = BETAS  # YAML has lists and no tuples
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lr_warmup_frac: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lr_schedule: Schedule = "linear"


class FullAdapter(Section):
    type: Literal["full"]


class LoraAdapter(Section):
    """Low-rank adapters (arXiv 2106.09685): W + (alpha / r) B A on the named linear layers, W
    quantised while they are trained."""

    example: ClassVar[str] = "{r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, v_proj]}"
    type: Literal["lora"]
    r: SmallCount
    alpha: SmallCount
    dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: Annotated[list[str], Field(min_length=1)]
    quantization: Quantization = "none"


Adapter = Annotated[FullAdapter | LoraAdapter, Field(discriminator="type")]


class ScratchModel(Section):
    """A Qwen3-architecture decoder with random weights and a byte-level BPE tokenizer of its
    own."""

    example: ClassVar[str] = (
        "{hidden_size: 96, num_layers: 2, num_heads: 4, num_kv_heads: 2, head_dim: 64, mlp_size: 256, "
        "vocab_size: 900, adapter: {type: full}, gradient_checkpointing: false, dtype: float32}"
    )
    type: Literal["scratch"]
    hidden_size: SmallCount
    num_layers: Annotated[int, Field(ge=1, le=1000, description=SLIP)]
    num_heads: Annotated[int, Field(ge=1, le=1000, description=SLIP)]
    num_kv_heads: Annotated[int, Field(ge=1, le=1000, description=SLIP)]
    head_dim: Annotated[int, Field(ge=2, le=1000, multiple_of=2, description=SLIP)]
    mlp_size: SmallCount
    vocab_size: Annotated[int, Field(ge=400, le=10_000_000, description=SLIP)]
    adapter: Adapter
    gradient_checkpointing: bool
    rows_at_once: RowsAtOnce = None
    tokens_at_once: TokensAtOnce = None
    dtype: Dtype

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}; "
                "each KV head serves whole query heads"
            )
        return self

    @model_validator(mode="after")
    def _adapts_layers_that_are_there(self) -> Self:
        targets = self.adapter.target_modules if isinstance(self.adapter, LoraAdapter) else []
        if problem := target_problem(targets, self.num_layers):
            raise ValueError(problem)
        return self


class PretrainedModel(Section):
    """Any causal LM in Hugging Face format: a hub name or a folder. `chat_template`, for models
    whose own has no tools, is `compact` (ChatML, tools by their signatures), or `bare`, the same
    without the system text."""

    example: ClassVar[str] = (
        "{name: Qwen/Qwen2.5-7B-Instruct, "
        "adapter: {type: lora, r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, v_proj]}, "
        "gradient_checkpointing: true, dtype: bfloat16}"
    )
    type: Literal["pretrained"]
    name: str
    revision: str | None = None
    chat_template: str | None = None
    adapter: Adapter
    gradient_checkpointing: bool
    rows_at_once: RowsAtOnce = None
    tokens_at_once: TokensAtOnce = None
    dtype: Dtype


class PrepareModelParams(Section):
    warmup_steps: Annotated[int, Field(ge=0, le=10_000_000, description=SLIP)]
    warmup_batch_size: SmallCount
    lr: Rate


def at_once_of(model: ScratchModel | PretrainedModel) -> AtOnce:
    return AtOnce(model.rows_at_once, model.tokens_at_once)


def target_problem(targets: Sequence[str], num_layers: int) -> str | None:
    """An error text where one of LoRA's `target_modules` ends no name in `LINEAR_LAYERS`."""
    names = [f".model.layers.{index}.{name}" for index in range(num_layers) for name in LINEAR_LAYERS]
    unknown = [target for target in targets if not any(name.endswith(f".{target}") for name in names)]
    if not unknown:
        return None
    ends = [name.rpartition(".")[2] for name in LINEAR_LAYERS]
    meant = "".join(nearest(target.rpartition(".")[2], ends) for target in unknown)
    return (
        f"adapter.target_modules has {', '.join(unknown)}, but the linear layers that the policy and the reward model "
        f"have are {', '.join(ends)}: an adapter that attaches to nothing trains nothing.{meant} Correct the names"
    )


def local_config(model: PretrainedModel, *, root: Path = Path()) -> dict[str, Any]:
    """config.json of the model's folder below `root` or of the hub's cache, without
    transformers; empty where only the hub has it."""
    from huggingface_hub import try_to_load_from_cache  # takes a fifth of a second to import

    if (folder := root / model.name).is_dir():
        return read_config(folder / "config.json")
    found = try_to_load_from_cache(model.name, "config.json", revision=model.revision)
    return read_config(Path(found)) if isinstance(found, str) else {}


def read_config(file: Path) -> dict[str, Any]:
    """Raises OSError or ValueError where the file is no JSON object."""
    config = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError("its config.json is no object")
    return config
