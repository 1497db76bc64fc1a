"""Reads what an OpenAI-compatible endpoint answered: JSON, or a stream of server-sent events put
together to the object that the same request answers without `stream`."""

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

_GROWS = ("content", "reasoning_content", "reasoning", "refusal", "arguments")  # texts that come in pieces


def read_json(body: bytes) -> Any:
    """The JSON value of a body, None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def read_answer(body: bytes) -> dict[str, Any]:
    """The answer as one object, also of a stream that was cut off; empty where it is neither a JSON
    object nor events. An error in mid-stream is the object's `error`."""
    if (answer := read_json(body)) is not None:
        return answer if isinstance(answer, dict) else {}
    whole: dict[str, Any] = {}
    for text in re.split(r"(?:\r\n|\n|\r){2}", body.decode("utf-8-sig", "replace")):
        data = [line[5:] for line in re.split(r"[\r\n]+", text) if line.startswith("data:")]
        event = read_json("\n".join(data).encode())
        with contextlib.suppress(AttributeError, TypeError, RecursionError):  # a comment, `[DONE]`, or cut off
            if str(event.get("type")).startswith("response."):
                whole = event.get("response") or whole  # the last event of the Responses API has all of it
            else:
                _merge(whole, {"error": event} if event.get("type") == "error" else event)
    return whole


def message_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The first choice's message, empty where there is none."""
    with contextlib.suppress(LookupError, TypeError, ValueError):
        return dict(answer["choices"][0]["message"])
    return {}


def _merge(whole: dict[str, Any], chunk: Mapping[str, Any]) -> None:
    """Add a chunk: choices and tool calls go by `index`, and deltas become the message."""
    for name, value in chunk.items():
        name = "message" if name == "delta" else name  # noqa: PLW2901
        if isinstance(value, dict):
            whole[name] = whole.get(name) or {}
            _merge(whole[name], value)
        elif isinstance(value, list):
            parts = whole[name] = whole.get(name) or []
            for part in value:
                known = [one for one in parts if "index" in part and one.get("index") == part["index"]]
                parts += [] if known else [{}]
                _merge((known or parts)[-1], part)
        elif name in _GROWS and isinstance(value, str):
            whole[name] = (whole.get(name) or "") + value
        elif value is not None or name not in whole:
            whole[name] = value
