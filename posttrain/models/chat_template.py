"""Chat templates of this project: one for models from scratch, with a special token per role, and
`compact` and `bare` for pretrained models whose own template has no tools.

The decision to argue with: the scratch template drops the system text and names tools without their
schemas. Fourteen schemas would cost a hundred times the tokens, and a model that has seen 6,000
conversations learns a tool's arguments from its uses, not from its description.
"""

from pathlib import Path
from typing import Any

from posttrain.models.call_formats.json_formats import Hermes
from posttrain.runtime.exits import ConfigurationError

PAD = "<|pad|>"
END = "<|end|>"  # the agent writes it at the end of its message
TOOLS = "<|tools|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
TOOL = "<|tool|>"
ROLE_MARKERS = (PAD, END, TOOLS, USER, ASSISTANT, TOOL)
THOUGHT = ("<think>", "</think>")
AGENT_MARKERS = (*THOUGHT, *Hermes.markers)  # written by the agent, so not special: decoding must show them
# What is put before compact.jinja, by the template's name. `bare` drops the system text, for small
# models on slow machines: they learn what it says from demonstrations.
TEMPLATES = {"compact": "", "bare": "{%- set is_bare = true -%}\n"}
CHATML = ("<|im_start|>", "<|im_end|>")  # special tokens of the `compact` and `bare` templates


def scratch_template() -> str:
    return _text("scratch")


def named_template(name: str, tokenizer: Any) -> str:
    """The text of one of TEMPLATES. Raises ConfigurationError for another name, and where the
    tokenizer lacks ChatML's special tokens: new ones would be untrained."""
    if name not in TEMPLATES:
        raise ConfigurationError(f"model.chat_template is {name!r}; there are {', '.join(TEMPLATES)}")
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    if missing := [token for token in CHATML if token not in added]:
        raise ConfigurationError(
            f"model.chat_template {name} is written with {', '.join(missing)}, which the tokenizer of "
            f"{tokenizer.name_or_path!r} does not have: leave model.chat_template out, or choose a model that was "
            "trained on ChatML"
        )
    return template_text(name)


def template_text(name: str) -> str:
    return TEMPLATES[name] + _text("compact")


def served_template(template: str) -> str:
    """One of our templates, changed to take arguments as objects too, as vLLM gives them, and
    write them without spaces."""
    as_text = "call.function.arguments"
    either = f"({as_text} if {as_text} is string else {as_text} | tojson(separators=(',', ':')))"
    return template.replace(f" + {as_text} + ", f" + {either} + ")


def _text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.jinja").read_text(encoding="utf-8").rstrip("\n")
