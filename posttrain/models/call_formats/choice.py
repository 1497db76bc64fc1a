"""All forms that are known."""

from posttrain.models.call_formats.form import CallForm
from posttrain.models.call_formats.hermes import Hermes
from posttrain.models.call_formats.llama3_json import Llama3Json
from posttrain.models.call_formats.mistral import Mistral
from posttrain.models.call_formats.pythonic import Pythonic

HERMES: CallForm = Hermes()
FORMS: tuple[CallForm, ...] = (HERMES, Llama3Json(), Mistral(), Pythonic())


def form_of(key: str, rendered: str) -> CallForm | None:
    """The one in which a template wrote a call with the arguments {key: key}."""
    return next((form for form in FORMS if form.stand_in(key, rendered) is not None), None)
