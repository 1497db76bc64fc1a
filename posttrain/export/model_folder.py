"""Writes a trained model as others read it: a Hugging Face folder whose chat template takes
arguments as servers give them, and what vLLM has to be told of one."""

import json
from pathlib import Path

import torch

from posttrain.exits import ConfigurationError
from posttrain.models.chat_template import served_template
from posttrain.models.loading import load_codec, load_whole, refuse_unsafe_folder, save_model, whole_folder
from posttrain.params import Dtype


def write_exported(folder: Path, target: Path, *, card: str, dtype: Dtype) -> None:
    """`folder` with its weights in `dtype`, and `card` as README.md. Raises ConfigurationError
    where `target` exists."""
    if target.exists():
        raise ConfigurationError(f"{target} exists: remove it, or name another folder")
    model, tokenizer = load_whole(folder), load_codec(folder).tokenizer
    tokenizer.chat_template = served_template(tokenizer.chat_template)
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(target) as partial:
        save_model(model.to(getattr(torch, dtype)), tokenizer, partial)
        (partial / "README.md").write_text(card, encoding="utf-8")


def vllm_settings(folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Flags for infra/vllm/serve.sh that make it answer chats of an exported model, tool calls
    among it, and its environment. The model is called as its folder. Raises ConfigurationError
    where it is no model's."""
    refuse_unsafe_folder(folder)
    parser = load_codec(folder).form.name
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    flags = ("--served-model-name", folder.resolve().name, "--enable-auto-tool-choice", "--tool-call-parser", parser)
    return flags, {"DTYPE": str(config["dtype"]), "MAX_MODEL_LEN": str(config["max_position_embeddings"])}
