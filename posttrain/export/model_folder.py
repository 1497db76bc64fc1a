"""Writes a trained model as a Hugging Face folder whose chat template takes arguments as servers
give them, with the flags that vLLM needs for it."""

import json
from pathlib import Path

import torch

from posttrain.models.call_formats.response_template import ResponseTemplateFormat
from posttrain.models.chat_template import TEMPLATES, served_template
from posttrain.models.loading import atomic_folder, load_codec, load_on_cpu, refuse_unsafe_folder, save_model
from posttrain.models.params import Dtype
from posttrain.runtime.exits import ConfigurationError

# llama.cpp writes a system text that a template never looks at into the user's message
_LOOK = "{%- set unread = messages and messages[0].content -%}\n"


def write_exported(folder: Path, target: Path, *, card: str, dtype: Dtype) -> None:
    """Write `folder` with its weights in `dtype`, and `card` as README.md. Raises
    ConfigurationError where `target` exists."""
    if target.exists():
        raise ConfigurationError(f"{target} exists: remove it, or name another folder")
    model, codec = load_on_cpu(folder), load_codec(folder)
    tokenizer = codec.tokenizer
    tokenizer.chat_template = _of_a_server(tokenizer.chat_template)
    if isinstance(codec.call_format, ResponseTemplateFormat):
        tokenizer.response_template = codec.call_format.served_content()
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(target) as partial:
        save_model(model.to(getattr(torch, dtype)), tokenizer, partial)
        (partial / "README.md").write_text(card, encoding="utf-8")


def _of_a_server(template: str) -> str:
    is_bare = template.startswith(TEMPLATES["bare"])
    return (_LOOK if is_bare else "") + served_template(template)


def vllm_settings(folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Flags for infra/vllm/serve.sh that make it answer chats of an exported model, tool calls
    among it, and its environment. The model is called as its folder. Raises ConfigurationError
    where it is no model's."""
    refuse_unsafe_folder(folder)
    form = load_codec(folder).call_format
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    flags = ["--served-model-name", folder.resolve().name, "--enable-auto-tool-choice", "--tool-call-parser", form.name]
    if isinstance(form, ResponseTemplateFormat) and form.has_reasoning:
        flags += ["--reasoning-parser", form.name]
    return tuple(flags), {
        "DTYPE": str(config["dtype"]),
        "MAX_MODEL_LEN": str(config["max_position_embeddings"]),
    }
