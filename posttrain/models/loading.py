"""How a model enters and leaves the pipeline: folders in Hugging Face format with safetensors
weights, or a hub name and revision.

Three things are refused everywhere: weights in pickle format and a repository's own Python modules,
because they run a stranger's code at load, and weights that are not exactly the model's, because
transformers draws what is missing at random. A folder from outside is opened in a child process
with limits first (`limited_process`): its template, its tokenizer's patterns and its sizes may take
any time and memory.
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from posttrain.models.chat_template import named_template
from posttrain.models.codec import ChatCodec
from posttrain.models.limited_process import Say, raise_memory, run_limited
from posttrain.models.local_config import read_config
from posttrain.models.params import Dtype, PretrainedModel
from posttrain.models.placement import placed
from posttrain.models.quantization import quantised, unpacked
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.types import Message, ToolCall

# transformers renamed it after 5.17, and names its methods and the trainers' argument by it
CHECKPOINTING = "activation_checkpointing"
if not hasattr(PreTrainedModel, f"{CHECKPOINTING}_enable"):
    CHECKPOINTING = "gradient_checkpointing"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_INDEX = "model.safetensors.index.json"
_OTHER_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]  # of a hub's repository: all that is no weights
_MAX_WEIGHTS_A_BYTE = 8  # fewer bits than one a weight no format has
_MAX_COMPUTED = 2**28  # numbers that a model computes from its config alone, such as a table of positions
_NUM_NAMED = 3  # of many names in a message
# patterns that try all ways to cut a text take longest where a run of equal marks ends in another
_PROBES = tuple(
    mark * 5_000 + end for mark in ("a", "A", "1", " ", "\n", "a ", "=", "价", "é") for end in ("!", "\x00")
)
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "description": "d"}}, "required": ["a"]}
_NUM_PROBE_TURNS = 24  # of an episode at its turn limit


def load_model(path: Path, *, dtype: Dtype = "float32") -> Any:
    """The causal LM of a folder, in evaluation mode, where models live here (`placement`). Raises
    ConfigurationError where the folder has pickled weights or none, DataError where they are cut
    off."""
    return placed(load_whole(path, dtype=dtype))


def load_whole(path: Path, *, dtype: Dtype = "float32") -> Any:
    """The same in main memory, for a trainer that shards it, or to be saved."""
    return load_sound(AutoModelForCausalLM, path, dtype=dtype)


def load_quantised(path: Path, quantization: Literal["int8", "nf4"], *, dtype: Dtype) -> Any:
    """As `load_model`, its linear layers but the head in fewer bits. Raises ConfigurationError
    where bitsandbytes is missing, too."""
    return unpacked(load_sound(AutoModelForCausalLM, path, dtype=dtype, **quantised(quantization, dtype)))


def load_codec(path: Path) -> ChatCodec:
    """The tokenizer of a folder with its chat template. Raises ConfigurationError where either is
    missing."""
    return ChatCodec(_tokenizer(path))


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
    try:
        folder = Path(params.name) if Path(params.name).is_dir() else _download(params)
    except (OSError, ValueError) as error:
        raise _unavailable(params.name, params.revision, error) from error
    check_folder(folder, name=params.name, chat_template=params.chat_template)
    model = load_sound(AutoModelForCausalLM, folder, name=params.name, dtype=params.dtype)
    return model, _with_template(_tokenizer(folder), params.chat_template)


def check_folder(folder: Path, *, name: str = "", chat_template: str | None = None) -> None:
    """Open the model folder of a stranger in a child process, all of it but the values of its
    weights. Raises ConfigurationError or DataError, with one sentence, where this does not end well
    within the limits of `run_limited`."""

    def look(say: Say) -> None:
        say("the list of its files")
        refuse_unsafe_folder(folder)
        _refuse_links(folder)
        say("its config.json")
        is_quantised = "quantization_config" in read_config(folder / "config.json")
        say("the model that its config.json describes")
        num_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        num_rows = refuse_other_sizes(str(folder), num_bytes)
        say("its tokenizer")
        tokenizer = _tokenizer(folder)
        _refuse_unknown_ids(tokenizer, num_rows)
        say("its chat template")
        _try_codec(ChatCodec(_with_template(tokenizer, chat_template)))
        if is_quantised:  # without its numbers nothing is told of it
            return
        say("the list of its weights")
        raise_memory(num_bytes)
        model = load_sound(AutoModelForCausalLM, folder, name=name, dtype="float32", device_map="meta")
        if model.can_generate():
            model.generation_config.validate(strict=True)  # else it could be loaded and not saved

    run_limited(look, subject=f"the model {name or str(folder)!r}")


def use_gradient_checkpointing(model: Any) -> None:
    """Recompute activations in the backward pass: memory for about a third more time."""
    getattr(model, f"{CHECKPOINTING}_enable")(**{f"{CHECKPOINTING}_kwargs": {"use_reentrant": False}})
    # without it a model whose embeddings are frozen (LoRA) has no gradient to recompute for
    model.enable_input_require_grads()


def refuse_unsafe_folder(path: Path) -> None:
    """Raises ConfigurationError where a folder has pickled weights, also by its index, no
    safetensors at all, or adapters instead of a model."""
    listed = [name for index in path.glob("*.index.json") for name in _indexed(index)]
    if pickles := {name for name in [*_names(path), *listed] if name.endswith(_PICKLES)}:
        raise ConfigurationError(
            f"{path} has weights in pickle format ({_some(pickles)}), "
            "and loading a pickle runs whatever code its author put in. "
            "Convert them to safetensors and remove these files, and their names from the index"
        )
    if strays := {name for name in listed if not _is_weights_of(path, name)}:
        raise ConfigurationError(
            f"the index of {path} names {_some(strays)}, and that is no file *.safetensors of this folder: "
            "copy the whole model anew"
        )
    if "adapter_config.json" in _names(path):  # transformers would load the model that it names, whatever that is
        raise ConfigurationError(
            f"{path} has adapters (adapter_config.json), which are no model: merge them into their base model "
            "(merge_and_unload of PEFT), and name the folder of the result"
        )
    if not any(path.glob("*.safetensors")):
        raise ConfigurationError(
            f"{path} has no *.safetensors: it is not a model's folder, or the stage that writes it has not run"
        )


def refuse_other_sizes(source: str, num_bytes: int, **how: Any) -> int:
    """The rows of the embedding that a config describes, of a model of which no weight is made.
    Raises ConfigurationError where its weights cannot be in `num_bytes`, or where what is computed
    from the config alone would fill the memory."""
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False, **how)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    count, num_computed = (sum(one.numel() for one in found) for found in (model.parameters(), model.buffers()))
    if count > _MAX_WEIGHTS_A_BYTE * num_bytes or num_computed > _MAX_COMPUTED:
        raise ConfigurationError(
            f"the config of {source} describes {count} weights and tables of {num_computed} numbers, and the files of "
            f"its weights have {num_bytes} bytes: they do not belong together: get both from one source"
        )
    return len(model.get_input_embeddings().weight)


def first_line(error: Exception) -> str:
    """Of what a reader of models says, for a message of ours; its class where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def load_sound(kind: Any, folder: Path, *, name: str = "", dtype: Dtype, **how: Any) -> Any:
    """The model of a folder, called `name` in messages, as `load_exactly` has it. Raises
    ConfigurationError where the folder is unsafe, too, and DataError where its weights are cut
    off."""
    refuse_unsafe_folder(folder)
    name = name or str(folder)
    how |= {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
    try:
        return load_exactly(kind, str(folder), name=name, dtype=getattr(torch, dtype), **how)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unavailable(name, None, error) from error
    except Exception as error:  # the class of safetensors' own error is private to its extension
        if type(error).__name__ != "SafetensorError":
            raise
        raise DataError(
            f"the weights of {name} cannot be read ({first_line(error)}): the file is cut off or damaged; make it again"
        ) from error


def load_exactly(kind: Any, source: str, *, name: str, new: Collection[str] = (), **how: Any) -> Any:
    """`kind.from_pretrained` of the arguments, in evaluation mode. Raises ConfigurationError where
    weights are missing, left over, of another shape, or not finite; those of the names `new` may be
    missing where the folder is of another class, without this head."""
    disable_progress_bar()
    logging.getLogger("transformers.modeling_utils").addFilter(_is_no_report)
    # those of another shape are refused below, by their names
    model, report = kind.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **how)
    _refuse_lost(model, report, name, new)
    _refuse_not_finite(model, name)
    return model.eval()


def _is_no_report(record: logging.LogRecord) -> bool:
    """Of transformers' log, all but its table of lost weights: they are refused here, and a head
    that is new by design is no news."""
    return "LOAD REPORT" not in record.getMessage()


def _refuse_lost(model: Any, report: Mapping[str, Any], name: str, new: Collection[str]) -> None:
    if type(model).__name__ in (model.config.architectures or ()):
        new = ()
    # older files have tables of positions, once for each layer
    computed = {_end(buffer) for buffer, _ in model.named_buffers()}
    old_heads = {"lm_head.weight"} if new else set()
    lost = {
        "are missing": set(report["missing_keys"]) - set(new),
        "are none of the model's": {key for key in report["unexpected_keys"] if _end(key) not in computed} - old_heads,
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
        # NaN comes through a minimum, and no mask as large as the weights is made
        if not torch.stack(weight.detach().aminmax()).isfinite().all():
            raise ConfigurationError(
                f"the weight {key} of {name!r} has a value that is no finite number, so all that the model says would "
                "be NaN: its training diverged or the file is damaged. Get the model anew, or an earlier checkpoint"
            )


def _download(params: PretrainedModel) -> Path:
    """A hub's repository on this machine: its texts first, then the weights that they name."""

    def fetch(patterns: list[str]) -> Path:
        return Path(
            snapshot_download(params.name, revision=params.revision, allow_patterns=patterns, ignore_patterns=["*/*"])
        )

    index = fetch(_OTHER_FILES) / _INDEX
    return fetch([*_OTHER_FILES, *(sorted(set(_indexed(index))) if index.exists() else ["model.safetensors"])])


def _tokenizer(folder: Path) -> Any:
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{folder} has no tokenizer that can be read ({first_line(error)}): "
            "the stage that writes the folder has to run first"
        ) from error


def _with_template(tokenizer: Any, chat_template: str | None) -> Any:
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if chat_template is not None:
        tokenizer.chat_template = named_template(chat_template, tokenizer)
    return tokenizer


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*"))


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:_NUM_NAMED]) + (", …" if len(names) > _NUM_NAMED else "")


def _indexed(index: Path) -> list[str]:
    """The files that an index of weights names. Raises ConfigurationError where it is none."""
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [str(name) for name in names]
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{index} is no index of weights ({first_line(error)}): copy the model anew"
        ) from error


def _is_weights_of(folder: Path, name: str) -> bool:
    return name.endswith(".safetensors") and name == Path(name).name and (folder / name).is_file()


def _refuse_links(folder: Path) -> None:
    """Raises ConfigurationError of a link that leads out of the folder, to where a stranger may
    have guessed a file of this machine; those into a cache of the hub's or DVC's are theirs."""
    home = folder.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    for file in (*folder.glob("*"), *folder.glob("additional_chat_templates/*")):
        real = Path(os.path.realpath(file))
        is_cached = real.is_relative_to(blobs) or real.parent.parent.parts[-2:] == ("files", "md5")
        if not file.is_dir() and not (file.is_file() and (is_cached or real.is_relative_to(home))):
            raise ConfigurationError(
                f"{file} is a link out of the model's folder, or no file: put the file itself there, or remove it"
            )


def _refuse_unknown_ids(tokenizer: Any, num_rows: int) -> None:
    for text in _PROBES:
        tokenizer.decode(tokenizer(text)["input_ids"])
    written = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id}
    # Gemma 3 without images has a token of images, which no text that is encoded here becomes
    unwritten = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special} - written
    beyond = {number for number in tokenizer.get_vocab().values() if number >= num_rows} - unwritten
    if beyond:
        raise ConfigurationError(
            f"the tokenizer of {tokenizer.name_or_path!r} has tokens up to number {max(beyond)}, and the model has "
            f"rows for {num_rows}: a text with the last ones would end a training. Take the model's own tokenizer"
        )


def _try_codec(codec: ChatCodec) -> None:
    """Take long episodes through a template as training will. What it refuses of them is said where
    demonstrations have that."""
    text = "It is 价 1.5. " * 400
    tools = [
        {"type": "function", "function": {"name": name, "description": "d", "parameters": _SCHEMA}} for name in "fg"
    ]
    calls = tuple(ToolCall(f"call_{index}", name, '{"a": 1}') for index, name in enumerate("fg"))
    results = [Message("tool", text, tool_call_id=call.id) for call in calls]
    opening = [Message("system", text), Message("user", text)]
    for said, thought, made in (("", None, calls[:1]), (text, text, calls), (text, None, ())):
        turn = [Message("assistant", said, thought, made), *(results[: len(made)] or [Message("user", text)])]
        with contextlib.suppress(ConfigurationError):
            codec.encode_row([*opening, *turn * _NUM_PROBE_TURNS, Message("assistant", "t")], tools)


def _unavailable(name: str, revision: str | None, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"the model {name!r} at revision {revision or 'main'!r} cannot be loaded ({first_line(error)}). "
        "Check model.name and model.revision and that the hub can be reached or the model is already in its cache; "
        "offline, set model.name to a folder with config.json, safetensors and a tokenizer, or model.type to scratch"
    )
