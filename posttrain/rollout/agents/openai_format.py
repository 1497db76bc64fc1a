"""Reads requests of OpenAI's chat completions and writes answers.

The rollout's temperature and limits apply, so a client's are ignored; any other parameter that
would change the message is refused by name: an agent that silently gets something else than it
asked for would be trained as another agent than the one that is deployed.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from posttrain.rollout.agents.program import Served
from posttrain.runtime.limits import clip, reason
from posttrain.types import Message
from posttrain.worlds.tools import refuse_constant

MODEL = "policy"  # the only model there is; a client may name any
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_ONLY: dict[str, tuple[Any, ...]] = {  # by parameter: the values that change nothing; absent and null always are
    "n": (1,),
    "stream": (False, True),  # the whole message comes as one piece
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


class BadRequest(Exception):
    """A request that a rollout cannot serve; the text is for the person who wrote the agent."""


def read_body(body: bytes) -> Any:
    """A request's JSON. Raises BadRequest where it is none or holds half of a character."""
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=refuse_constant)
        # JSON can escape half of a surrogate pair, and no tokenizer can read it
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body must be JSON in UTF-8: {str(error)[:200]}") from error
    return content


def read_request(body: Any) -> tuple[list[Message], list[Mapping[str, Any]]]:
    """Messages, and schemas of the tools offered, of a body. Raises BadRequest."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise BadRequest("the body must be a JSON object with a list of messages, one at least")
    for name, accepted in _ONLY.items():
        if body.get(name) is not None and body[name] not in accepted:
            raise BadRequest(
                f"{name} is {_quoted(body[name])}; a rollout gives one whole message of text and tool calls, "
                "freely chosen: leave it out"
            )
    messages = [read_message(message) for message in body["messages"]]
    if messages[0].role not in ("system", "user"):
        raise BadRequest(f"the first message has the role {messages[0].role}; it must be system or user")
    schemas = body.get("tools") or []
    if not isinstance(schemas, list) or not all(map(_is_function, schemas)):
        raise BadRequest(
            "tools must be a list of functions: {type: function, function: {name, description, parameters}}"
        )
    return messages, schemas


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
    texts = [read.content, read.reasoning_content or "", read.tool_call_id or ""]
    texts += [text for call in read.tool_calls for text in astuple(call)]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest(
            f"a message has another value where OpenAI's form has text (arguments are JSON text): {_quoted(message)}"
        )
    return read


def completion(served: Served) -> dict[str, Any]:
    """The body of an answer."""
    message = {**served.message.to_openai(), "content": _content(served.message), "refusal": None}
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",  # frameworks key messages by it
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": served.finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": served.num_read,
            "completion_tokens": served.num_written,
            "total_tokens": served.num_read + served.num_written,
        },
    }


def streamed(body: Mapping[str, Any]) -> str:
    """An answer's body as server-sent events: the message in one piece, the usage, the end."""
    [choice] = body["choices"]
    calls = [{"index": index, **call} for index, call in enumerate(choice["message"].get("tool_calls") or [])]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    head = {**{name: body[name] for name in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    pieces = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        {**head, "choices": [], "usage": body["usage"]},
    ]
    return "".join(f"data: {one}\n\n" for one in (*map(json.dumps, pieces), "[DONE]"))


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


def _content(message: Message) -> str | None:
    return None if message.tool_calls and not message.content else message.content
