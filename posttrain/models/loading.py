"""How a model enters and leaves the pipeline: folders in Hugging Face format with safetensors
weights, or a hub name and revision.

Two things are refused everywhere, because they run a stranger's code at load: weights in pickle
format, and a repository's own Python modules.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from posttrain.exits import ConfigurationError, DataError
from posttrain.models.chat_template import named_template
from posttrain.models.codec import ChatCodec
from posttrain.models.placement import placed
from posttrain.models.quantization import quantised, unpacked
from posttrain.params import Dtype, PretrainedModel

# transformers renamed it after 5.17, and names its methods and the trainers' argument by it
CHECKPOINTING = "activation_checkpointing"
if not hasattr(PreTrainedModel, f"{CHECKPOINTING}_enable"):
    CHECKPOINTING = "gradient_checkpointing"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


def load_model(path: Path, *, dtype: Dtype = "float32") -> Any:
    """The causal LM of a folder, in evaluation mode, where models live here (`placement`). Raises
    ConfigurationError where the folder has pickled weights or none, DataError where they are cut
    off."""
    return placed(load_whole(path, dtype=dtype))


def load_whole(path: Path, *, dtype: Dtype = "float32") -> Any:
    """The same in main memory, for a trainer that shards it, or to be saved."""
    refuse_unsafe_folder(path)
    return _from_pretrained(str(path), revision=None, dtype=dtype)


def load_quantised(path: Path, quantization: Literal["int8", "nf4"], *, dtype: Dtype) -> Any:
    """As `load_model`, its linear layers but the head in fewer bits. Raises ConfigurationError
    where bitsandbytes is missing, too."""
    refuse_unsafe_folder(path)
    return unpacked(_from_pretrained(str(path), revision=None, dtype=dtype, **quantised(quantization, dtype)))


def load_codec(path: Path) -> ChatCodec:
    """The tokenizer of a folder with its chat template. Raises ConfigurationError where either is
    missing."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} has no tokenizer that can be read ({first_line(error)}): "
            "the stage that writes the folder has to run first"
        ) from error
    return ChatCodec(tokenizer)


def save_model(model: Any, tokenizer: Any, path: Path) -> None:
    """Write a folder that `load_model` and `load_codec` read; equal weights give equal bytes,
    wherever the model was loaded from."""
    for trace_of_loading in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(trace_of_loading, None)
    disable_progress_bar()  # of transformers: one line per shard among the stage's own progress
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Where to write what appears under its name when it is whole; what stood there is replaced
    then."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)


def load_pretrained(params: PretrainedModel) -> tuple[Any, Any]:
    """Model and tokenizer of a hub name or a folder, at the revision given. Raises
    ConfigurationError where they cannot be had."""
    folder = Path(params.name)
    if folder.is_dir():
        refuse_unsafe_folder(folder)
    model = _from_pretrained(params.name, revision=params.revision, dtype=params.dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            params.name, revision=params.revision or "main", trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise _unavailable(params.name, params.revision, error) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if params.chat_template is not None:
        tokenizer.chat_template = named_template(params.chat_template, tokenizer)
    return model, tokenizer


def use_gradient_checkpointing(model: Any) -> None:
    """Recompute activations in the backward pass: memory for about a third more time."""
    getattr(model, f"{CHECKPOINTING}_enable")(**{f"{CHECKPOINTING}_kwargs": {"use_reentrant": False}})
    # without it a model whose embeddings are frozen (LoRA) has no gradient to recompute for
    model.enable_input_require_grads()


def refuse_unsafe_folder(path: Path) -> None:
    """Raises ConfigurationError where a folder has pickled weights, or no safetensors at all."""
    if pickles := sorted(found.name for pattern in _PICKLES for found in path.glob(pattern)):
        raise ConfigurationError(
            f"{path} has weights in pickle format ({', '.join(pickles[:3])}), "
            "and loading a pickle runs whatever code its author put in. "
            "Convert them to safetensors and remove these files"
        )
    if not any(path.glob("*.safetensors")):
        raise ConfigurationError(
            f"{path} has no *.safetensors: it is not a model's folder, or the stage that writes it has not run"
        )


def first_line(error: Exception) -> str:
    """Of what a reader of models says, for a message of ours; its class where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _from_pretrained(name: str, *, revision: str | None, dtype: Dtype, **how: Any) -> Any:
    disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            name,
            revision=revision or "main",
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            **how,
        )
    except (OSError, ValueError, KeyError) as error:
        raise _unavailable(name, revision, error) from error
    except Exception as error:  # the class of safetensors' own error is private to its extension
        if type(error).__name__ != "SafetensorError":
            raise
        raise DataError(
            f"the weights of {name} cannot be read ({first_line(error)}): the file is cut off or damaged; make it again"
        ) from error
    return model.eval()


def _unavailable(name: str, revision: str | None, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"the model {name!r} at revision {revision or 'main'!r} cannot be loaded ({first_line(error)}). "
        "Check model.name and model.revision and that the hub can be reached or the model is already in its cache; "
        "offline, set model.name to a folder with config.json, safetensors and a tokenizer, or model.type to scratch"
    )
