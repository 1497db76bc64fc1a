"""The chat format of a model from scratch: its markers, one token each, and its Jinja template.

The decision to argue with: the template drops the system text and names the offered tools without
their schemas. A usual template with fourteen schemas costs a hundred times the tokens, and a model
that has seen 6,000 conversations learns what a tool takes from its uses, not from its description.
Pretrained models keep the template they were trained with.
"""

from pathlib import Path

PAD = "<|pad|>"
END = "<|end|>"  # the agent writes it at the end of its message
TOOLS = "<|tools|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
TOOL = "<|tool|>"
ROLE_MARKERS = (PAD, END, TOOLS, USER, ASSISTANT, TOOL)
AGENT_MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)  # written by the agent, so ordinary tokens: decoding must show them


def scratch_template() -> str:
    """The template's text; it takes OpenAI messages with `arguments` as JSON text, written as they
    are."""
    return (Path(__file__).parent / "scratch.jinja").read_text(encoding="utf-8").rstrip("\n")
