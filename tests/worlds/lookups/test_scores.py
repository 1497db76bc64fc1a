from dataclasses import replace
from decimal import Decimal

import pytest

from posttrain.rewards.total import length_penalty
from posttrain.types import Message, Task, ToolCall, Trajectory
from posttrain.worlds.lookups import scores
from posttrain.worlds.lookups.gold import Answer
from posttrain.worlds.lookups.matching import read
from posttrain.worlds.tools import Tool
from tests.worlds.lookups.play import ANSWER, ERROR, INFO, PRICE, call, played, result, say, task, user, with_tokens


def of(score):
    """The score as a function of trajectory and task."""
    return lambda trajectory, task, *more: score(read(trajectory, task), *more)


accuracy, completion, efficiency, step, timing = map(
    of, (scores.accuracy, scores.completion, scores.efficiency, scores.step, scores.timing)
)
tool_accuracy, is_strict, format_score = map(of, (scores.tool_accuracy, scores.is_strict, scores.format))
format_error, redundant_call, wrong_tool = map(of, (scores.format_error, scores.redundant_call, scores.wrong_tool))
INFO_CALL = call("get_hk_company_info")
WRONG_CALL = call("get_realtime_quote")
DONE = task(answer=Answer("choice", "done"))


def is_success(trajectory: Trajectory, task: Task) -> bool:
    return completion(trajectory, task).value == 1


def test_a_right_value_without_the_call_that_holds_it_is_a_guess():
    score = completion(played(say()), task(PRICE))
    assert score.value == 0.0
    assert score.feedback == "The answer is in the result of get_hk_realtime_quote."


def test_a_call_where_none_is_right_fails_the_task():
    assert is_success(played(say("ANSWER: done")), DONE)
    assert not is_success(played(call(), result(), say("ANSWER: done")), DONE)


def test_a_market_in_doubt_must_be_asked_before_the_first_call():
    ambiguous = task(PRICE, asks="market")
    ask = say("ASK: market")
    assert is_success(played(ask, user(), call(), result(), say()), ambiguous)
    assert not is_success(played(call(), result(), say()), ambiguous)
    assert not is_success(played(call(), result(), ask, user(), say()), ambiguous)
    assert not is_success(played(say("ASK: date"), user(), call(), result(), say()), ambiguous)


def test_a_call_outside_of_what_the_goal_accepts_undoes_strictness_and_repeating_a_gold_call_does_not():
    wanted = task(PRICE, INFO)
    right = [call(), result(), INFO_CALL, result()]
    assert is_strict(played(*right, say()), wanted)
    assert is_strict(played(*right, *right, say()), wanted)
    assert is_strict(played(call(arguments='{"code":"0700.HK","days":5}'), result(), *right, say()), wanted)
    assert not is_strict(played(*right, WRONG_CALL, result(), say()), wanted)
    assert not is_strict(played(call(arguments='{"code"'), result(ERROR), *right, say()), wanted)
    assert not is_strict(played(call(arguments='{"code":"00001.HK"}'), result(), *right, say()), wanted)
    assert is_strict(played(say("ANSWER: done")), DONE)
    assert not is_strict(played(call(), result(), say("ANSWER: done")), DONE)


def test_f1_of_one_right_call_twice_and_a_wrong_one_is_two_fifths():
    score = tool_accuracy(played(call(), result(), call(), result(), WRONG_CALL, result(), say()), task(PRICE, INFO))
    assert score.value == 0.4  # matched 1, made 3, needed 2: 2 * 1 / (3 + 2)
    assert score.feedback == "Not called as needed: get_hk_company_info."


@pytest.mark.parametrize(
    ("messages", "value"), [([], 0.0), ([say("ANSWER: done")], 1.0), ([call(), result(), say("ANSWER: done")], 0.0)]
)
def test_where_no_call_is_needed_only_an_agent_that_spoke_and_made_none_is_right(messages, value):
    assert tool_accuracy(played(*messages), DONE).value == value


def test_one_repeated_call_makes_a_success_three_quarters_efficient():
    assert (
        efficiency(played(call(), result(), call(), result(), INFO_CALL, result(), say()), task(PRICE, INFO)).value
        == 0.75
    )


def test_two_calls_in_one_message_are_two_steps():
    both = Message(
        "assistant", tool_calls=(call().tool_calls[0], ToolCall("call_2", "get_hk_company_info", '{"code":"00700.HK"}'))
    )
    played_at_once = played(both, result(), Message("tool", "{}", tool_call_id="call_2"), say())
    assert efficiency(played_at_once, task(PRICE)).value == 2 / 3


def test_a_needless_question_makes_two_of_three_decisions_timely():
    score = timing(played(say("ASK: market"), user(), call(), result(), say()), task(PRICE))
    assert score.value == 2 / 3
    assert score.feedback == "Where the agent chose ask, call was due."


def test_answering_before_the_call_is_untimely_and_so_is_calling_after_it():
    assert timing(played(say()), task(PRICE)).value == 0.0
    assert timing(played(call(), result(), call(), result(), say()), task(PRICE)).value == 2 / 3


def test_a_question_that_is_due_is_due_once_and_before_the_call():
    ambiguous = task(PRICE, asks="market")
    ask = [say("ASK: market"), user()]
    assert timing(played(*ask, call(), result(), say()), ambiguous).value == 1.0
    assert timing(played(*ask, *ask, call(), result(), say()), ambiguous).value == 3 / 4
    assert (
        timing(played(call(), result(), *ask, say()), ambiguous).value == 1 / 3
    )  # the call came too early, the question too late


def test_one_of_two_messages_unreadable_halves_the_format():
    assert format_score(played(call(arguments='{"code"'), result(ERROR), say()), task(PRICE)).value == 0.5
    assert format_score(played(call(), result(), say("It is 380.20 HKD")), task(PRICE)).value == 0.5
    assert format_score(played(call(), result(), say()), task(PRICE)).value == 1.0


def test_length_is_free_up_to_64_tokens_a_step_and_rises_to_one_at_twice_that():
    play = played(call(), result(), say())  # two steps: 128 tokens are free
    assert length_penalty(with_tokens(play, 128), task(PRICE)).value == 0.0
    assert length_penalty(with_tokens(play, 160), task(PRICE)).value == 0.25
    assert length_penalty(with_tokens(play, 1000), task(PRICE)).value == 1.0


def test_without_tokens_four_bytes_count_as_one():
    text = "x" * (4 * 96 - len("\n" + ANSWER)) + "\n" + ANSWER
    assert length_penalty(played(say(text)), DONE).value == 0.5  # one step, 64 free, 96 written


def test_a_wrong_call_then_the_right_one_then_the_answer_are_two_thirds_of_steps():
    score = step(played(WRONG_CALL, result(), call(), result(), say()), task(PRICE))
    assert score.value == 2 / 3
    assert score.breakdown == {"2": 0.0, "4": 1.0, "6": 1.0}
    assert score.feedback == "Message 2 brought nothing."


def test_a_due_question_earns_its_step_once():
    ask = [say("ASK: market"), user()]
    score = step(played(*ask, *ask, call(), result(), say()), task(PRICE, asks="market"))
    assert score.breakdown == {"2": 1.0, "4": 0.0, "6": 1.0, "8": 1.0}


@pytest.mark.parametrize("score", [completion, tool_accuracy, efficiency, timing, format_score, accuracy, step])
@pytest.mark.parametrize(
    "wanted", [task(PRICE), task(PRICE, asks="market"), DONE, task(answer=Answer("number", Decimal(5), "x"))]
)
def test_an_empty_episode_earns_nothing(score, wanted):
    assert score(played(), wanted).value == 0.0


# The penalties

TOOLS = {name: Tool(name, "", {}, print, side_effect="none") for name in task().tools}
BROKEN = [call("get_", '{"code"'), result(ERROR), say()]


@pytest.mark.parametrize(
    ("penalty", "messages", "wanted", "value"),
    [
        (wrong_tool, [call(), result(), say()], task(PRICE), 0),
        (wrong_tool, [WRONG_CALL, result(), call("get_hk_macd"), result(), say()], task(PRICE), 1),
        (wrong_tool, [call(), result(), say("ANSWER: done")], DONE, 1),
        (wrong_tool, BROKEN, task(PRICE), 0),
        (format_error, BROKEN, task(PRICE), 1),
        (format_error, [call(), result(), say("380.20")], task(PRICE), 1),
        (format_error, [call(), result(), say()], task(PRICE), 0),
    ],
)
def test_a_wrong_tool_and_an_unreadable_message_are_penalties(penalty, messages, wanted, value):
    assert penalty(played(*messages), wanted).value == value


def is_redundant(*messages, tools=TOOLS):
    return redundant_call(played(*messages, say()), task(PRICE), tools).value == 1


def test_a_call_whose_result_was_known_is_redundant():
    one, other = call(arguments='{"code":"00700.HK","days":5}'), call(arguments='{"days":5,"code":"00700.HK"}')
    assert is_redundant(one, result(), other, result()), "the order of arguments does not matter"
    assert is_redundant(call(), result(ERROR), call(), result(ERROR)), "tools are deterministic"
    assert not is_redundant(call(), result(), call("get_hk_macd"), result())
    respelt = call(arguments='{"code":"0700.HK"}')
    assert is_redundant(call(), result(), respelt, result())
    assert not is_redundant(call(), result(ERROR), respelt, result())


def test_a_tool_that_may_change_something_may_be_called_again_unless_it_is_the_gold_call():
    changing = {name: replace(tool, side_effect="reversible") for name, tool in TOOLS.items()}
    again = [call("get_hk_macd"), result()] * 2
    assert is_redundant(*again)
    assert not is_redundant(*again, tools=changing)
    assert is_redundant(call(), result(), call(), result(), tools=changing)
