"""Scores of an episode in any world, beside those of its own world."""

from dataclasses import replace

import pytest

from posttrain.types import Message, Outcome, StopReason
from posttrain.worlds.grading import CONSENT, GENERAL_SCORES, completed, is_consent
from posttrain.worlds.tools import Tool
from tests.worlds.lookups.play import ERROR, call, played, result, say

READ, WRITE = Tool("read", "", {}, print, side_effect="none"), Tool("write", "", {}, print)
TOOLS = {"read": READ, "write": WRITE}
STRICT, LOOSE, FAILED = Outcome(True, True), Outcome(True, False), Outcome(False, False)
GOOD = [call("read", "{}"), result(), say("done")]


def graded(*messages: Message, outcome: Outcome = STRICT, stop: StopReason = StopReason.DONE) -> Outcome:
    return completed(outcome, played(*messages, stop=stop), TOOLS)


def test_every_general_score_is_there_and_a_good_episode_has_the_best_of_each():
    good = {"completion": 1, "strictness": 1, "format": 1, "redundant_call": 0, "format_error": 0, "timeout": 0}
    assert graded(*GOOD).scores == good
    assert set(good) == set(GENERAL_SCORES), "consent is of worlds with a tool that asks for it"


@pytest.mark.parametrize(("outcome", "scores"), [(STRICT, (1, 1)), (LOOSE, (1, 0)), (FAILED, (0, 0))])
def test_completion_and_strictness_are_what_the_world_said_of_success_whatever_it_gave_under_these_names(
    outcome, scores
):
    lying = Outcome(outcome.success, outcome.strict_success, {"completion": 0.5, "strictness": 0.5})
    for one in (outcome, lying):
        told = graded(*GOOD, outcome=one)
        assert (told.scores["completion"], told.scores["strictness"]) == scores
        assert (told.success, told.strict_success) == (outcome.success, outcome.strict_success)


def test_what_the_world_gave_stands_beside_the_general_scores_and_before_them():
    own = Outcome(
        True, False, {"format": 0.25, "timeout": 1.0, "politeness": 0.5}, 0.7, (1.0, 0.0), feedback="Shorter."
    )
    told = graded(*GOOD, outcome=own)
    assert (told.scores["format"], told.scores["timeout"], told.scores["politeness"]) == (0.25, 1.0, 0.5)
    assert told.scores["redundant_call"] == 0
    assert (told.reward, told.turn_scores, told.feedback) == (0.7, (1.0, 0.0), "Shorter.")


def test_format_is_the_share_of_messages_that_parse():
    malformed = call("read", '{"a"')
    told = graded(malformed, result(ERROR), call("read", "{}"), result(), say("done"), say("done"))
    assert (told.scores["format"], told.scores["format_error"]) == (0.75, 1)
    assert graded().scores["format"] == 0, "who wrote nothing wrote nothing well"
    assert graded().scores["format_error"] == 0
    assert graded(say("any words at all")).scores["format"] == 1, "what words mean, only a world knows"


def test_a_repeated_read_is_redundant_and_a_repeated_write_is_not():
    assert graded(*[call("read", "{}"), result()] * 2, say()).scores["redundant_call"] == 1
    assert graded(*[call("write", "{}"), result()] * 2, say()).scores["redundant_call"] == 0
    between = [call("read", "{}"), result(), call("write", "{}"), result(), call("read", "{}"), result(), say()]
    assert graded(*between).scores["redundant_call"] == 0


@pytest.mark.parametrize(
    ("messages", "stop", "failure"),
    [
        (GOOD, StopReason.DONE, "goal_not_reached"),
        ([call("read", '{"a"'), result(ERROR), say()], StopReason.DONE, "bad_json"),
        ([call("read", "{}"), result()], StopReason.TURN_LIMIT, "turn_limit"),
        ([call("read", '{"a"'), result(ERROR)], StopReason.TOKEN_LIMIT, "token_limit"),
    ],
)
def test_a_failure_without_a_class_gets_a_general_one_and_the_worlds_own_stands(messages, stop, failure):
    assert graded(*messages, outcome=FAILED, stop=stop).failure == failure
    own = Outcome(False, False, failure="still_shut")
    assert graded(*messages, outcome=own, stop=stop).failure == "still_shut"
    assert graded(*messages, outcome=LOOSE, stop=stop).failure == ""


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"success": False, "strict_success": True}, "strict success implies success"),
        ({"success": True, "strict_success": False, "failure": "bad_json"}, "a success and a failure"),
        ({"success": True, "strict_success": True, "scores": {"format": 1.5}}, "a number from 0 to 1"),
        ({"success": True, "strict_success": True, "scores": {"format": float("nan")}}, "a number from 0 to 1"),
    ],
)
def test_an_outcome_that_contradicts_itself_is_refused(fields, reason):
    with pytest.raises(ValueError, match=reason):
        Outcome(**fields)


def test_the_worlds_words_are_kept_without_keys_and_within_a_limit(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "pk/Ab3+Ef6hIj9lMn2pQr5tUv8xZw1")
    said = "with pk/Ab3+Ef6hIj9lMn2pQr5tUv8xZw1 " + "x" * 100_000
    told = graded(*GOOD, outcome=Outcome(False, False, failure=said, feedback=said))
    for text in (told.failure, told.feedback):
        assert text.startswith("with [key removed: SOME_API_KEY] xx")
        assert len(text) < 10_000


SEND = replace(WRITE, name="send", side_effect="irreversible")
ASKED = say("Shall I send it?")


@pytest.mark.parametrize(
    ("messages", "is_early"),
    [
        ([call("send", "{}"), result()], True),
        ([ASKED, Message("user", "Yes, please."), call("send", "{}"), result()], False),
        ([ASKED, Message("user", "No, wait."), call("send", "{}"), result()], True),
        ([ASKED, Message("user", "好的"), call("read", "{}"), result(), call("send", "{}"), result()], False),
        ([ASKED, Message("user", "yes"), ASKED, Message("user", "not this one"), call("send", "{}"), result()], True),
        ([call("send", "{}"), result(ERROR)], False),  # nothing was sent
        ([call("write", "{}"), result()], False),  # what can be taken back needs no consent
    ],
)
def test_a_write_before_consent_is_one_that_was_executed_before_the_user_agreed(messages, is_early):
    outcome = completed(STRICT, played(*messages, say("done")), TOOLS | {"send": SEND})
    assert outcome.scores[CONSENT] == is_early


def test_a_question_that_begins_with_yes_is_no_consent():
    """The first words of the user are no reply to the agent."""
    [_, first, *_] = played(say()).messages
    opened = replace(first, content="Yes, hello: send it.")
    episode = played(call("send", "{}"), result(), say("done"))
    messages = tuple(opened if one == first else one for one in episode.messages)
    assert completed(STRICT, replace(episode, messages=messages), {"send": SEND}).scores[CONSENT] == 1


@pytest.mark.parametrize(
    "words", ["Yes", "ok!", "OK, do it", "Sure thing", "Go ahead.", "是的,下单", "好的", "可以", "对", "行,办吧"]
)
def test_words_that_agree(words):
    assert is_consent(words)


@pytest.mark.parametrize(
    "words",
    [
        "No",
        "not yet",
        "Surely not",
        "Yesterday I sold it",
        "不",
        "不行",
        "行不通",
        "对不起,不要",
        "好像不对",
        "是不是贵了",
        "",
    ],
)
def test_words_that_do_not(words):
    assert not is_consent(words)
