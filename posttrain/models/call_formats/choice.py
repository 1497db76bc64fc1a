"""All forms that are known."""

from typing import Any

from posttrain.models.call_formats.format import ToolCallFormat
from posttrain.models.call_formats.hermes import Hermes
from posttrain.models.call_formats.llama3_json import Llama3Json
from posttrain.models.call_formats.mistral import Mistral
from posttrain.models.call_formats.pythonic import Pythonic
from posttrain.models.call_formats.response_template import ResponseTemplateForm, response_template_of

HERMES: ToolCallFormat = Hermes()
FORMS: tuple[ToolCallFormat, ...] = (HERMES, Llama3Json(), Mistral(), Pythonic())


def form_of(tokenizer: Any, key: str, rendered: str) -> ToolCallFormat | None:
    """The one in which the tokenizer's chat template wrote a call with the arguments {key: key}:
    one of FORMS, or what a response template describes. Raises ConfigurationError where that
    describes no calls."""
    if form := next((form for form in FORMS if form.stand_in(key, rendered) is not None), None):
        return form
    if key not in rendered or (template := response_template_of(tokenizer)) is None:
        return None
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    try:
        return ResponseTemplateForm(template, added, key, rendered)
    except ValueError:
        return None
