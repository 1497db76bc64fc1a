"""The calls of an episode with what came back, in any world; which of them were known before."""

from dataclasses import replace

import pytest

from posttrain.types import Message, ToolCall, Turn
from posttrain.worlds.made_calls import calls_made, repeated_reads
from posttrain.worlds.tools import SideEffect, Tool, ToolError, tool_from
from tests.worlds.lookups.play import ERROR, OK, call, played, result, say

EFFECTS: dict[str, SideEffect] = {"read": "none", "look": "none", "write": "reversible"}
TOOLS = {name: Tool(name, "", {}, print, side_effect=effect) for name, effect in EFFECTS.items()}
READ, LOOK, WRITE = (call(name, '{"a":1}') for name in ("read", "look", "write"))
READ_OTHER = call("read", '{"a":2}')


def num_repeated(*messages: Message) -> int:
    return len(repeated_reads(calls_made(played(*messages)), TOOLS))


def test_a_message_that_a_program_put_into_the_conversation_is_not_the_agents():
    episode = played(call("planted", "{}"), result(OK), call("own", "{}"))
    assert [one.name for one in calls_made(episode)] == ["planted", "own"]
    own = next(
        index
        for index, message in enumerate(episode.messages)
        if message.tool_calls and message.tool_calls[0].name == "own"
    )
    assert [one.name for one in calls_made(replace(episode, turns=(Turn(1, 1, 0, own),)))] == ["own"]


def test_results_are_paired_by_id_and_a_call_at_the_end_has_none():
    two = Message("assistant", tool_calls=(ToolCall("x", "one", "{}"), ToolCall("y", "two", "{}")))
    calls = calls_made(
        played(two, Message("tool", "of y", tool_call_id="y"), Message("tool", ERROR, tool_call_id="x"), call())
    )
    assert [(one.name, one.result, one.is_executed) for one in calls] == [
        ("one", ERROR, False),
        ("two", "of y", True),
        ("get_hk_realtime_quote", None, False),
    ]


def test_an_id_that_stands_twice_is_paired_in_order():
    two = Message("assistant", tool_calls=(ToolCall("x", "one", "{}"), ToolCall("x", "two", "{}")))
    calls = calls_made(
        played(two, Message("tool", "first", tool_call_id="x"), Message("tool", "second", tool_call_id="x"))
    )
    assert [one.result for one in calls] == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "arguments"), [("", "{}"), ("quote", '{"code"'), ("quote", "[1]"), ("quote", "[" * 100_000)]
)
def test_a_call_without_a_name_or_a_json_object_is_malformed(name, arguments):
    (only,) = calls_made(played(call(name, arguments)))
    assert only.is_malformed


def test_no_arguments_at_all_are_the_empty_object():
    """Servers write so where a tool has no parameters."""
    (only,) = calls_made(played(call("look", "")))
    assert (only.arguments, only.is_malformed) == ({}, False)
    assert tool_from(needs_nothing).call(" ") == '"nothing needed"'
    with pytest.raises(ToolError, match="missing argument 'code'"):
        tool_from(quote).call("")


def needs_nothing() -> str:
    """Needs nothing."""
    return "nothing needed"


def quote(code: str) -> str:
    """Quote a share."""
    return code


def test_a_read_that_was_made_before_is_repeated_each_time_that_it_is():
    assert num_repeated(READ, result(), LOOK, result(), READ_OTHER, result(), say()) == 0
    assert num_repeated(READ, result(), LOOK, result(), READ, result(), say()) == 1
    assert num_repeated(READ, result(), READ, result(), READ, result()) == 2


def test_a_read_that_failed_fails_again_and_one_that_never_came_back_is_known_too():
    assert num_repeated(READ, result(ERROR), READ, result(ERROR)) == 1
    assert num_repeated(READ, result(), READ) == 1


def test_a_read_after_a_write_is_no_fault_and_a_second_read_after_it_is():
    assert num_repeated(READ, result(), WRITE, result(), READ, result()) == 0
    assert num_repeated(READ, result(), WRITE, result(), READ, result(), READ, result()) == 1
    assert num_repeated(READ, result(), WRITE, result(ERROR), READ, result()) == 0, "it may have changed something"


def test_a_tool_that_is_not_declared_read_only_may_be_called_as_often_as_one_likes():
    assert num_repeated(*[WRITE, result()] * 5) == 0
    undeclared = Tool("read", "", {}, print)
    assert repeated_reads(calls_made(played(*[READ, result()] * 5)), {"read": undeclared}) == []


def test_a_malformed_call_and_one_of_no_tool_are_neither_known_nor_a_change():
    malformed, unknown = call("read", '{"a"'), call("fly", '{"a":1}')
    assert num_repeated(*[malformed, result(ERROR)] * 2, *[unknown, result(ERROR)] * 2) == 0
    assert num_repeated(READ, result(), malformed, result(ERROR), unknown, result(ERROR), READ, result()) == 1
