"""Calls as a response template describes them, with which transformers and vLLM (`hf`) parse a
model's output: the tokenizer's own, or TRL's for a chat template that it knows (Qwen3.5, GLM 4.5,
Gemma 4).

In most of these formats a text stands without quotes, and `600519` may be a text or a number: the
schema of the called tool says which.
"""

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import regex  # type: ignore[import-untyped]
from transformers.utils.chat_parsing import parse_response
from transformers.utils.chat_parsing.response_templates import load_response_template

from posttrain.models.call_formats.format import (
    RawCall,
    Schemas,
    dump_arguments,
    is_nested_deep,
    join_content,
    loads_or_none,
    replace_lone_surrogates,
)
from posttrain.runtime.exits import ConfigurationError

_REASONING, _THINKING = "reasoning_content", "thinking"


class ResponseTemplateFormat:
    """A `ToolCallFormat` of a response template. `rendered`: a call with the arguments {key:
    key} as the chat template writes it. Raises ConfigurationError where the response template
    describes no calls, ValueError where it parses this one otherwise."""

    name = "hf"
    writes_objects = True

    def __init__(self, content: Mapping[str, Any], added_tokens: Collection[str], key: str, rendered: str) -> None:
        self.content = content
        try:
            self._template = load_response_template(dict(content))
            field = self._template.fields["tool_calls"]
            end = rf"(?:{field.close_re.pattern}|\Z)" if field.close_re else r"\Z"
            self.calls = regex.compile(rf"\s*(?:{field.open_re.pattern})(?P<body>.*?){end}\s*", regex.DOTALL)
        except (KeyError, ValueError, AttributeError, regex.error) as error:
            raise ConfigurationError(
                f"the tokenizer's response_template describes no calls that could be read: {error!r}"
            ) from error
        self._tag = field.content_args["tag_pattern"] if field.content == "xml-inline" else None
        example = self._call_with(key, rendered)
        self._bare = "" if example is None else self._without_values(example["body"])
        self.markers: tuple[str, ...] = (
            () if example is None else tuple(one for one in added_tokens if one in example[0])
        )
        if example is None or [loads_or_none(one.arguments) for one in self._read(example, ())] != [{key: key}]:
            raise ValueError(f"the response template reads {rendered!r} otherwise")

    def read(self, text: str, tools: Schemas, /) -> tuple[str, list[RawCall]]:
        found = list(self.calls.finditer(text))
        ends = [0, *(one.end() for one in found)]
        starts = [*(one.start() for one in found), len(text)]
        around = [text[end:start] for end, start in zip(ends, starts, strict=True)]
        return join_content(around), [call for one in found for call in self._read(one, tools)]

    def served_content(self) -> dict[str, Any]:
        """The response template with the one name that vLLM has for reasoning."""
        fields = {_THINKING if name == _REASONING else name: one for name, one in self.content["fields"].items()}
        return {**self.content, "fields": fields}

    @property
    def has_reasoning(self) -> bool:
        return _THINKING in self.served_content()["fields"]

    def placeholder(self, key: str, rendered: str) -> str | None:
        """Everything between a call's markers."""
        call = self._call_with(key, rendered)
        return None if call is None else str(call["body"])

    def arguments(self, text: str, like: str, /) -> str:
        return like.replace(like.strip(), text)

    def _call_with(self, key: str, rendered: str) -> Any:
        return next((call for call in self.calls.finditer(rendered) if key in call["body"]), None)

    def _read(self, call: Any, tools: Schemas) -> list[RawCall]:
        """Calls of one match; its text under its name where they cannot be parsed."""
        body = call["body"]
        try:
            if is_nested_deep(body) or (self._tag and self._without_values(body) != self._bare):
                raise ValueError("more than values")
            message = parse_response(call[0].strip(), self._template, prefix="", tools=[dict(tool) for tool in tools])
            return [_raw_call(one["function"]) for one in _flat(message["tool_calls"])]
        except (ValueError, TypeError, KeyError, RecursionError):
            return [RawCall(call.groupdict().get("name") or "", body.strip() or call[0].strip())]

    def _without_values(self, body: str) -> str:
        """The text around the values, white space left out; empty where values have no tags."""
        return "".join(regex.sub(self._tag, "", body, flags=regex.DOTALL).split()) if self._tag else ""


def response_template_of(tokenizer: Any) -> Mapping[str, Any] | None:
    """The tokenizer's own, or TRL's for its chat template."""
    if own := getattr(tokenizer, "response_template", None):
        return own  # type: ignore[no-any-return]
    from trl.chat_template_utils import add_response_schema

    try:
        return add_response_schema(SimpleNamespace(chat_template=tokenizer.chat_template)).response_template  # type: ignore[no-any-return]
    except ValueError:
        return None


def _raw_call(function: Mapping[str, Any]) -> RawCall:
    name, arguments = function["name"], function["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ValueError("not a call")
    return RawCall(replace_lone_surrogates(name), dump_arguments(arguments))


def _flat(calls: Any) -> list[Any]:
    return [inner for one in calls for inner in _flat(one)] if isinstance(calls, list) else [calls]
