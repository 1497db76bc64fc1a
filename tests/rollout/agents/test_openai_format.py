"""OpenAI's format on the wire, letter for letter but for ids and times."""

import json

import pytest

from posttrain.rollout.agents.openai_format import (
    BadRequest,
    completion,
    openai_messages,
    read_message,
    read_request,
)
from posttrain.rollout.agents.program import Served
from posttrain.types import Message, ToolCall

CALL = ToolCall("call_1", "get_quote", '{"code":"00700"}')
ON_THE_WIRE = {"id": "call_1", "type": "function", "function": {"name": "get_quote", "arguments": '{"code":"00700"}'}}
SERVED = Served(Message("assistant", "", "HK", (CALL,)), num_read=9, num_written=4, is_cut=False)
SETTINGS = {
    "temperature": 0.1,
    "top_p": 0.5,
    "max_tokens": 3,
    "seed": 4,
    "user": "me",
    "n": 1,
    "stop": None,
    "tool_choice": "auto",
}


def test_an_answer_is_a_chat_completion():
    found = completion(SERVED)
    assert {key: found[key] for key in ("object", "model", "choices", "usage")} == {
        "object": "chat.completion",
        "model": "policy",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "HK",
                    "tool_calls": [ON_THE_WIRE],
                    "refusal": None,
                },
                "finish_reason": "tool_calls",
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
    }
    assert found["id"] != completion(SERVED)["id"]


@pytest.mark.parametrize(
    ("is_cut", "calls", "finish"), [(False, (), "stop"), (False, (CALL,), "tool_calls"), (True, (CALL,), "length")]
)
def test_how_a_message_ended(is_cut, calls, finish):
    assert Served(Message("assistant", "x", None, calls), 1, 1, is_cut).finish == finish


def test_messages_come_back_as_they_were_served():
    [wire] = openai_messages([SERVED.message])
    assert read_message(wire) == SERVED.message
    assert read_message(json.loads(json.dumps(completion(SERVED)["choices"][0]["message"]))) == SERVED.message


def test_parts_of_text_are_text_and_a_developer_is_the_system():
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert read_message({"role": "developer", "content": parts}) == Message("system", "one two")


def test_a_clients_settings_are_let_pass_unread():
    asked = {"messages": [{"role": "user", "content": "x"}], "model": "gpt", **SETTINGS}
    assert read_request(asked) == ([Message("user", "x")], [])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": "x"}, "must have one of the roles"),
        ("x", "must have one of the roles"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "a part that is no text"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "not in OpenAI's form"),
        ({"role": "assistant", "tool_calls": "x"}, "not in OpenAI's form"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}]},
            "arguments are JSON text",
        ),
        ({"role": "user", "content": 5}, "where OpenAI's form has text"),
    ],
)
def test_a_message_that_cannot_be_read_is_quoted(message, reason):
    with pytest.raises(BadRequest, match=reason):
        read_message(message)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("stream", "yes"),
        ("logprobs", True),
        ("stop", ["\n"]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
    ],
)
def test_a_parameter_that_would_change_the_message_is_refused_by_name(name, value):
    with pytest.raises(BadRequest, match=f"^{name} is "):
        read_request({"messages": [{"role": "user", "content": "x"}], name: value})
