"""Loads and saves models: folders in Hugging Face format with safetensors weights, or a hub name
and revision.

Refused are pickled weights and a repository's own Python modules, which run untrusted code, and
weights that are not exactly the model's: transformers draws missing ones at random.
"""

import json
import logging
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from posttrain.models import distributed
from posttrain.models.chat_template import named_template
from posttrain.models.codec import ChatCodec
from posttrain.models.params import Dtype, PretrainedModel
from posttrain.models.quantization import quantised, unpacked
from posttrain.models.sharding import named_weights, write_weights_in_turn
from posttrain.runtime.exits import ConfigurationError, DataError

# in the names of transformers' methods and of the trainers' argument
CHECKPOINTING = "activation_checkpointing"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_INDEX = "model.safetensors.index.json"
OTHER_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]  # of a hub repository: everything but weights
_NUM_NAMED = 3  # names in a message


def load_model(path: Path, *, dtype: Dtype = "float32") -> Any:
    """The causal LM of a folder on `device()`, in evaluation mode."""
    return distributed.to_device(load_on_cpu(path, dtype=dtype))


def load_on_cpu(path: Path, *, dtype: Dtype = "float32") -> Any:
    return load_sound(AutoModelForCausalLM, path, dtype=dtype)


def load_quantised(path: Path, quantization: Literal["int8", "nf4"], *, dtype: Dtype) -> Any:
    """The causal LM of a folder, its linear layers but the head quantised."""
    return unpacked(load_sound(AutoModelForCausalLM, path, dtype=dtype, **quantised(quantization, dtype)))


def load_codec(path: Path) -> ChatCodec:
    return ChatCodec(_tokenizer(path))


def save_model(model: Any, tokenizer: Any, path: Path) -> None:
    """Write a folder that `load_model` and `load_codec` read; equal weights give equal bytes."""
    _save(model, tokenizer, path)


def save_shards_whole(model: Any, tokenizer: Any, path: Path | None) -> None:
    """Write the same folder of a sharded model, one weight after another; all processes must call
    it, the first with a path."""
    if path is not None:
        _save(model, tokenizer, path, state_dict={})  # what is about the model, without a weight of it
    write_weights_in_turn(named_weights(model), (path or Path()) / "model.safetensors")


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to write to, which replaces `path` at the end."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)


def load_pretrained(params: PretrainedModel) -> tuple[Any, Any]:
    """Model and tokenizer of a hub name and revision or of a folder."""
    try:
        folder = Path(params.name) if Path(params.name).is_dir() else _download(params)
    except (OSError, ValueError) as error:
        raise _unavailable(params.name, params.revision, error) from error
    model = load_sound(AutoModelForCausalLM, folder, name=params.name, dtype=params.dtype)
    tokenizer = _tokenizer(folder)
    _refuse_unknown_ids(tokenizer, len(model.get_input_embeddings().weight))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if params.chat_template is not None:
        tokenizer.chat_template = named_template(params.chat_template, tokenizer)
    return model, tokenizer


def use_gradient_checkpointing(model: Any) -> None:
    """Recompute activations in the backward pass: less memory for about a third more time."""
    getattr(model, f"{CHECKPOINTING}_enable")(**{f"{CHECKPOINTING}_kwargs": {"use_reentrant": False}})
    # or the first checkpointed layer of a model with frozen embeddings (LoRA) has no gradient
    model.enable_input_require_grads()


def refuse_unsafe_folder(path: Path) -> None:
    """Raise ConfigurationError for pickled weights, for adapters instead of a model, and where
    there is no safetensors file."""
    names = {file.name for file in path.glob("*")}
    # other names in the index would be read as pickles, or from another folder
    if strays := {name for name in _indexed(path / _INDEX) if name not in names or not name.endswith(".safetensors")}:
        raise ConfigurationError(
            f"the index of {path} names {_some(strays)}, and that is no file *.safetensors of this folder: "
            "copy the whole model anew"
        )
    if pickles := {name for name in names if name.endswith(_PICKLES)}:
        raise ConfigurationError(
            f"{path} has weights in pickle format ({_some(pickles)}), "
            "and loading a pickle runs whatever code its author put in. "
            "Convert them to safetensors and remove these files, and their names from the index"
        )
    if "adapter_config.json" in names:  # transformers would load whatever base model it names
        raise ConfigurationError(
            f"{path} has adapters (adapter_config.json), which are no model: merge them into their base model "
            "(merge_and_unload of PEFT), and name the folder of the result"
        )
    if not any(name.endswith(".safetensors") for name in names):
        raise ConfigurationError(
            f"{path} has no *.safetensors: it is not a model's folder, or the stage that writes it has not run"
        )


def first_line(error: Exception) -> str:
    """The first line of another library's error, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def load_sound(kind: Any, folder: Path, *, name: str = "", dtype: Dtype, **how: Any) -> Any:
    """Load a folder, called `name` in messages. Raises ConfigurationError where it is unsafe or
    cannot be loaded exactly, DataError where its weights are cut off."""
    refuse_unsafe_folder(folder)
    name = name or str(folder)
    how |= {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
    try:
        return load_exactly(kind, str(folder), name=name, dtype=getattr(torch, dtype), **how)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unavailable(name, None, error) from error
    except SafetensorError as error:
        raise DataError(
            f"the weights of {name} cannot be read ({first_line(error)}): the file is cut off or damaged; make it again"
        ) from error


def load_exactly(kind: Any, source: str, *, name: str, new: Collection[str] = (), **how: Any) -> Any:
    """`kind.from_pretrained` in evaluation mode. Raises ConfigurationError where weights are
    missing, left over, misshapen or not finite; those in `new`, a fresh head, may be missing."""
    disable_progress_bar()
    logging.getLogger("transformers.modeling_utils").addFilter(_is_no_report)
    # weights of another shape are refused below, with their names
    model, report = kind.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **how)
    _refuse_lost(model, report, name, new)
    _refuse_not_finite(model, name)
    return model.eval()


def _is_no_report(record: logging.LogRecord) -> bool:
    """Filters transformers' table of missing weights, which are refused here."""
    return "LOAD REPORT" not in record.getMessage()


def _save(model: Any, tokenizer: Any, path: Path, **how: Any) -> None:
    for argument_of_loading in ("is_local", "local_files_only"):  # or it is written to tokenizer_config.json
        tokenizer.init_kwargs.pop(argument_of_loading, None)
    disable_progress_bar()  # transformers' line per shard would stand among the stage's own progress
    model.save_pretrained(path, **how)
    tokenizer.save_pretrained(path)


def _refuse_lost(model: Any, report: Mapping[str, Any], name: str, new: Collection[str]) -> None:
    if type(model).__name__ in (model.config.architectures or ()):
        new = ()
    # older files hold tables of positions, once per layer, that are buffers now
    buffers = {_end(buffer) for buffer, _ in model.named_buffers()}
    old_heads = {"lm_head.weight"} if new else set()
    lost = {
        "are missing": set(report["missing_keys"]) - set(new),
        "are none of the model's": {key for key in report["unexpected_keys"] if _end(key) not in buffers} - old_heads,
        "have another shape": {key if isinstance(key, str) else key[0] for key in report["mismatched_keys"]},
    }
    if problems := [f"{len(keys)} {what} ({_some(keys)})" for what, keys in lost.items() if keys]:
        raise ConfigurationError(
            f"of the weights of {name!r}, {'; '.join(problems)}: what is missing would be random numbers, and the "
            "model another one than was published. Its config.json and its *.safetensors do not belong together: "
            "get both anew from one source, or write them with save_pretrained of the class that config.json names"
        )


def _end(key: str) -> str:
    return ".".join(key.split(".")[-2:])


def _refuse_not_finite(model: Any, name: str) -> None:
    for key, weight in model.named_parameters():
        if weight.is_meta or weight.dtype not in (torch.float32, torch.bfloat16, torch.float16) or not weight.numel():
            continue
        # aminmax propagates NaN; isfinite of the weights would make a mask as large as they are
        if not torch.stack(weight.detach().aminmax()).isfinite().all():
            raise ConfigurationError(
                f"the weight {key} of {name!r} has a value that is no finite number, so all that the model says would "
                "be NaN: its training diverged or the file is damaged. Get the model anew, or an earlier checkpoint"
            )


def _download(params: PretrainedModel) -> Path:
    """Download a hub repository: texts first, then the weights that its index names."""

    def fetch(patterns: list[str]) -> Path:
        return Path(
            snapshot_download(params.name, revision=params.revision, allow_patterns=patterns, ignore_patterns=["*/*"])
        )

    shards = _indexed(fetch(OTHER_FILES) / _INDEX)
    return fetch([*OTHER_FILES, *sorted(shards or ["model.safetensors"])])


def _tokenizer(folder: Path) -> Any:
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{folder} has no tokenizer that can be read ({first_line(error)}): "
            "the stage that writes the folder has to run first"
        ) from error


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:_NUM_NAMED]) + (", …" if len(names) > _NUM_NAMED else "")


def _indexed(index: Path) -> set[str]:
    """Files that an index of weights names; none without an index."""
    return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.exists() else set()


def _refuse_unknown_ids(tokenizer: Any, num_rows: int) -> None:
    written = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id}
    # Gemma 3 without images has a special token for images, which no text is encoded to
    unwritten = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special} - written
    beyond = {number for number in tokenizer.get_vocab().values() if number >= num_rows} - unwritten
    if beyond:
        raise ConfigurationError(
            f"the tokenizer of {tokenizer.name_or_path!r} has tokens up to number {max(beyond)}, and the model has "
            f"rows for {num_rows}: a text with the last ones would end a training. Take the model's own tokenizer"
        )


def _unavailable(name: str, revision: str | None, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"the model {name!r} at revision {revision or 'main'!r} cannot be loaded ({first_line(error)}). "
        "Check model.name and model.revision and that the hub can be reached or the model is already in its cache; "
        "offline, set model.name to a folder with config.json, safetensors and a tokenizer, or model.type to scratch"
    )
