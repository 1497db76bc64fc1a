from dataclasses import replace

from posttrain.worlds.lookups.scores import format_error, redundant_call, wrong_tool
from posttrain.worlds.tools import Tool
from tests.worlds.lookups.play import ERROR, PRICE, call, played, result, say, task

TOOLS = {name: Tool(name, "", {}, print, is_read_only=True) for name in task().tools}


def test_a_tool_that_no_gold_call_names_is_wrong():
    assert wrong_tool(played(call(), result(), say()), task(PRICE)).value == 0.0
    score = wrong_tool(played(call("get_realtime_quote"), result(), call("get_hk_macd"), result(), say()), task(PRICE))
    assert score.value == 1.0
    assert score.feedback == "get_realtime_quote is not needed."


def test_any_tool_is_wrong_where_none_is_needed():
    assert wrong_tool(played(call(), result(), say("ANSWER: done")), task()).value == 1.0


def test_a_call_that_does_not_parse_is_a_format_error_and_not_a_wrong_tool():
    trajectory = played(call("get_", '{"code"'), result(ERROR), say())
    assert wrong_tool(trajectory, task(PRICE)).value == 0.0
    assert format_error(trajectory, task(PRICE)).value == 1.0


def test_a_message_without_an_answer_line_is_a_format_error():
    assert format_error(played(call(), result(), say("380.20")), task(PRICE)).value == 1.0
    assert format_error(played(call(), result(), say()), task(PRICE)).value == 0.0


def test_the_same_call_again_is_redundant_also_with_its_arguments_in_another_order():
    one, other = call(arguments='{"code":"00700.HK","days":5}'), call(arguments='{"days":5,"code":"00700.HK"}')
    assert redundant_call(played(one, result(), other, result(), say()), task(PRICE), TOOLS).value == 1.0


def test_another_spelling_of_a_call_that_came_back_is_redundant():
    one, other = call(arguments='{"code":"00700.HK"}'), call(arguments='{"code":"0700.HK"}')
    assert redundant_call(played(one, result(), other, result(), say()), task(PRICE), TOOLS).value == 1.0
    assert redundant_call(played(one, result(ERROR), other, result(), say()), task(PRICE), TOOLS).value == 0.0


def test_trying_a_failed_call_again_unchanged_is_redundant_because_tools_are_deterministic():
    assert redundant_call(played(call(), result(ERROR), call(), result(ERROR), say()), task(PRICE), TOOLS).value == 1.0


def test_two_different_calls_are_not_redundant():
    assert (
        redundant_call(played(call(), result(), call("get_hk_macd"), result(), say()), task(PRICE), TOOLS).value == 0.0
    )


def test_a_tool_that_may_change_something_may_be_called_again_unless_it_is_the_gold_call():
    changing = {name: replace(tool, is_read_only=False) for name, tool in TOOLS.items()}
    again = [call("get_hk_macd"), result()] * 2
    assert redundant_call(played(*again, say()), task(PRICE), TOOLS).value == 1.0
    assert redundant_call(played(*again, say()), task(PRICE), changing).value == 0.0
    assert redundant_call(played(call(), result(), call(), result(), say()), task(PRICE), changing).value == 1.0
