"""Reads requests of OpenAI's chat completions and writes answers, whole or as a stream.

The rollout's temperature and limits apply, so a client's are ignored; any other parameter that
would change the message is refused by name: an agent that silently gets something else than it
asked for would be trained as another agent than the one that is deployed.
"""

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from posttrain.rollout.agents.program import Served
from posttrain.runtime.limits import clip, reason
from posttrain.types import Message
from posttrain.worlds.tools import refuse_constant

MODEL = "policy"  # the only model there is; a client may name any
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_ONLY: dict[str, tuple[Any, ...]] = {  # by parameter: the values that change nothing; absent and null always are
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "stop": ([],),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
_MAX_DEPTH = 100  # of a request; Python's own readers and writers give up at some hundreds


class BadRequest(Exception):
    """A request that a rollout cannot serve; the text is for the person who wrote the agent."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The fields of a request that are used. `schemas` is empty where no tools are offered."""

    messages: tuple[Message, ...]
    schemas: tuple[Mapping[str, Any], ...]
    is_stream: bool
    wants_usage: bool  # of a stream, as its last chunk


def read_body(body: bytes) -> Any:
    """A request's JSON. Raises BadRequest where it is none, is nested too deep, or holds half of a
    character."""
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=refuse_constant)
        # Refuses half of a surrogate pair: JSON can escape one, and no tokenizer can read it.
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body must be JSON in UTF-8: {str(error)[:200]}") from error
    level = [content]
    for _ in range(_MAX_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return content
    raise BadRequest(f"the body is nested more than {_MAX_DEPTH} levels deep, and no message or tool needs as many")


def read_request(body: Any) -> ChatRequest:
    """The request of a body. Raises BadRequest."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise BadRequest("the body must be a JSON object with a list of messages, one at least")
    for name, accepted in _ONLY.items():
        if body.get(name) is not None and body[name] not in accepted:
            raise BadRequest(
                f"{name} is {_quoted(body[name])}; a rollout gives one message of text and tool calls, "
                "freely chosen: leave it out"
            )
    messages = tuple(read_message(message) for message in body["messages"])
    if messages[0].role not in ("system", "user"):
        raise BadRequest(
            f"the conversation begins with a message of role {messages[0].role}; it must begin with system or user"
        )
    schemas = body.get("tools") or []
    if not isinstance(schemas, list) or not all(map(_is_function, schemas)):
        raise BadRequest(
            "tools must be a list of functions: {type: function, function: {name, description, parameters}}"
        )
    is_stream, options = body.get("stream") or False, body.get("stream_options") or {}
    if not isinstance(is_stream, bool) or not isinstance(options, dict):
        raise BadRequest("stream must be true or false, and stream_options an object")
    return ChatRequest(messages, tuple(schemas), is_stream, bool(options.get("include_usage")))


def read_message(message: Any) -> Message:
    """The message of OpenAI's form: `developer` becomes system, parts of text become one text.
    Raises BadRequest, also for parts that are no text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or message["role"] not in _ROLES:
        raise BadRequest(f"a message must have one of the roles {', '.join(_ROLES)}; this is {_quoted(message)}")
    content = message.get("content")
    if isinstance(content, list):
        if other := [part for part in content if not isinstance(part, dict) or not isinstance(part.get("text"), str)]:
            raise BadRequest(f"a message has a part that is no text, which this model cannot read: {_quoted(other[0])}")
        content = "".join(part["text"] for part in content)
    try:
        read = Message.from_openai({**message, "role": _ROLES[message["role"]], "content": content})
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"a message is not in OpenAI's form ({reason(repr(error))}): {_quoted(message)}") from error
    texts = [
        read.content,
        read.reasoning_content or "",
        read.tool_call_id or "",
        *(text for call in read.tool_calls for text in astuple(call)),
    ]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest(
            f"a message has another value where OpenAI's form has text (arguments are JSON text): {_quoted(message)}"
        )
    return read


def completion(served: Served) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    message = {**served.message.to_openai(), "content": _content(served.message), "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": served.finish, "logprobs": None}
    return {"object": "chat.completion", **_head(), "choices": [choice], "usage": _usage(served)}


def completion_events(served: Served, *, wants_usage: bool) -> Iterator[str]:
    """The answer as server-sent events: the whole message at once, then how it ended."""
    delta = {**served.message.to_openai(), "content": _content(served.message)}
    if served.message.tool_calls:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": served.finish}]},
    ]
    if wants_usage:
        chunks.append({"choices": [], "usage": _usage(served)})
    head = {"object": "chat.completion.chunk", **_head()}
    for chunk in chunks:
        yield f"data: {json.dumps({**head, **chunk}, ensure_ascii=False)}\n\n"
    yield "data: [DONE]\n\n"


def openai_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the form that a client sends."""
    return [{**message.to_openai(), "content": _content(message)} for message in messages]


def _quoted(value: Any) -> str:
    return clip(json.dumps(value), 200)


def _is_function(schema: Any) -> bool:
    function = schema.get("function") if isinstance(schema, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return False
    return isinstance(function.get("description") or "", str) and isinstance(function.get("parameters") or {}, dict)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _head() -> dict[str, Any]:
    """Fields of every answer. Ids are unique, because frameworks key messages by them."""
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": MODEL}


def _content(message: Message) -> str | None:
    return None if message.tool_calls and not message.content else message.content


def _usage(served: Served) -> dict[str, int]:
    return {
        "prompt_tokens": served.num_read,
        "completion_tokens": served.num_written,
        "total_tokens": served.num_read + served.num_written,
    }
