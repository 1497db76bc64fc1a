"""Detects the tool-call format of a tokenizer's chat template."""

from typing import Any

from posttrain.models.call_formats.format import ToolCallFormat
from posttrain.models.call_formats.json_formats import Hermes, Llama3Json, Mistral
from posttrain.models.call_formats.pythonic import Pythonic
from posttrain.models.call_formats.response_template import ResponseTemplateFormat, response_template_of

HERMES: ToolCallFormat = Hermes()
FORMATS: tuple[ToolCallFormat, ...] = (HERMES, Llama3Json(), Mistral(), Pythonic())


def detect_format(tokenizer: Any, key: str, rendered: str) -> ToolCallFormat | None:
    """The format in which the chat template rendered a call with the arguments {key: key}: one of
    FORMATS, or the one that a response template describes. Raises ConfigurationError where that
    describes no calls."""
    if known := next((one for one in FORMATS if one.placeholder(key, rendered) is not None), None):
        return known
    if key not in rendered or (template := response_template_of(tokenizer)) is None:
        return None
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    try:
        return ResponseTemplateFormat(template, added, key, rendered)
    except ValueError:
        return None
