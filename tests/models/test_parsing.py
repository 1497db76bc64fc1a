"""Whatever a policy writes becomes a message, and a call that cannot be read fails where a wrong
call fails."""

import time

import pytest

from posttrain.models.call_formats.json_formats import Llama3Json
from posttrain.models.codec import parse_assistant
from posttrain.types import Message, ToolCall
from posttrain.worlds.tools import ToolError, tool_from


def quote(code: str) -> float:
    """A price.

    Args:
        code: A listing.
    """
    return 1.0


NO_ARGUMENTS = ("", ',"arguments":null', ',"arguments":""', ',"arguments":{}')


def call(arguments: str, name: str = "get_quote", number: int = 0) -> ToolCall:
    return ToolCall(f"call_{number}", name, arguments)


def test_plain_text_is_content() -> None:
    assert parse_assistant(" ANSWER: 7.20 HKD\n") == Message("assistant", "ANSWER: 7.20 HKD")


def test_reasoning_text_and_several_calls_are_told_apart() -> None:
    text = (
        '<think>HK first</think>I look.<tool_call>{"name":"get_quote","arguments":{"code":"1"}}</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    )
    assert parse_assistant(text) == Message(
        "assistant", "I look.", "HK first", (call('{"code":"1"}'), call("{}", "f", 1))
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think></think>done", Message("assistant", "done")),
        (
            "<think>never ends <tool_call>{}</tool_call>",
            Message("assistant", "", "never ends <tool_call>{}</tool_call>"),
        ),
        (
            '<think>a<tool_call>{"name":"f","arguments":{}}</tool_call></think>b',
            Message("assistant", "b", 'a<tool_call>{"name":"f","arguments":{}}</tool_call>'),
        ),
        ("prompt opened it</think>so", Message("assistant", "so", "prompt opened it")),
        ("a <think> b </think> c", Message("assistant", "a <think> b </think> c")),
        ("</tool_call>", Message("assistant", "</tool_call>")),
        ("", Message("assistant", "")),
    ],
)
def test_marks_in_odd_places_are_text(text: str, expected: Message) -> None:
    assert parse_assistant(text) == expected


@pytest.mark.parametrize(
    ("written", "name", "arguments"),
    [
        ('{"name":"get_quote","arguments":{"code":"00700"}', "get_quote", '{"code":"00700"'),  # a brace is missing
        ('{"name":"get_quote","arguments":{"code":"00', "get_quote", '{"code":"00'),  # cut off
        ('{"name":"get_quote","arguments":}', "get_quote", '{"name":"get_quote","arguments":}'),
        ('{"name":"get_quote"', "get_quote", '{"name":"get_quote"'),
        ("get_quote(00700)", "", "get_quote(00700)"),
        ("", "", ""),
        ("[]", "", "[]"),
        ('{"name":7,"arguments":{}}', "", '{"name":7,"arguments":{}}'),
        ('<tool_call>{"name":"f","arguments":{}}', "f", '<tool_call>{"name":"f","arguments":{}}'),
    ],
)
def test_a_malformed_call_keeps_its_readable_name_and_its_text(written: str, name: str, arguments: str) -> None:
    assert parse_assistant(f"<tool_call>{written}</tool_call>").tool_calls == (call(arguments, name),)


def test_thousands_of_calls_in_one_message_are_read_in_a_second() -> None:
    """Not in the square of their number."""
    start = time.process_time()
    said = "; ".join(['{"name":"f","parameters":{}}'] * 10_000)
    assert len(parse_assistant(said, Llama3Json()).tool_calls) == 10_000
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "get_quote", "arguments": {"code":  "1", "n": 1.50}}', '{"code":  "1", "n": 1.50}'),  # as sampled
        *((f'{{"name":"get_quote"{given}}}', "{}") for given in NO_ARGUMENTS),
        ('{"arguments":{"code":"1"},"name":"get_quote"}', '{"code":"1"}'),  # another order
        ('{"name":"a","arguments":{},"name":"get_quote"}', "{}"),  # a key twice, as JSON reads it
    ],
)
@pytest.mark.parametrize("end", ["</tool_call>", ""])
def test_a_call_is_read_with_its_arguments_as_they_are_spelt(written: str, arguments: str, end: str) -> None:
    assert parse_assistant(f"<tool_call>{written}{end}").tool_calls == (call(arguments),)


@pytest.mark.parametrize(
    "written",
    [
        '{"name":"f","arguments":' + "[" * 100_000,
        '{"name":"f","arguments":' + "[" * 990 + "]" * 990 + "}",
        '{"name":"f","arguments":{"n":' + "9" * 100_000 + "}}",
        '{"name":"f","arguments":{"n":NaN}}',
        '{"name":"\\ud800","arguments":{"a":"\\udfff"}}',
        '{"name":"f","arguments":{"a":"\ud800"}}',
        '{"name":"f","arguments":{"a":"\0"}}',
        '{"name":"f","arguments":' + " " * 100_000 + "x",
        '{"name":"' * 20_000,
        "<tool_call>" * 20_000,
        "</think>" * 20_000,
    ],
)
def test_hostile_text_is_a_message_that_can_be_stored(written: str) -> None:
    message = parse_assistant(f"<tool_call>{written}</tool_call>")
    texts = [message.content, *(text for found in message.tool_calls for text in (found.name, found.arguments))]
    assert [text.encode().decode() for text in texts] == texts


@pytest.mark.parametrize(
    "written",
    [
        '{"name":"quote","arguments":{"code":"1"}',
        '{"name":"quote","arguments":"{}"}',
        '{"name":"quote","arguments":[1]}',
    ],
)
def test_what_is_not_an_object_is_answered_by_the_tool_with_an_error(written: str) -> None:
    (found,) = parse_assistant(f"<tool_call>{written}</tool_call>").tool_calls
    with pytest.raises(ToolError):
        tool_from(quote).call(found.arguments)
