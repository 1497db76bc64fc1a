"""Conversations that a program keeps for itself: which tokens stand, drawn under their words (`^`
written by the agent, `.` read)."""

import asyncio
from dataclasses import replace

import pytest

from posttrain.rollout.conversation import is_same
from posttrain.rollout.episode import Episode
from posttrain.rollout.policy import TokenPolicy
from posttrain.types import Message, StopReason, ToolCall
from tests.limits import limits_of
from tests.rollout.lock_world import LockWorld, WordCodec, lock_task, say
from tests.rollout.scripted_engine import ScriptedEngine

SYSTEM, USER = Message("system", "be brief"), Message("user", "open")
CALL = ToolCall("call_1", "try_code", '{"code":"1"}')
OPENING = [SYSTEM, USER]
LIMITS = limits_of(9, 9, 99)


class Play:
    """An agent that says the given lines; `drawn` is the row that would be trained on."""

    def __init__(self, *lines, limits=LIMITS):
        self.codec = WordCodec()
        script = [[*self.codec.ids(line), 0] for line in lines]
        self.engine = ScriptedEngine({5: script})
        self.policy = TokenPolicy(self.engine, self.codec, temperature=1.0)
        task = replace(lock_task(tools=("try_code",)), messages=tuple(OPENING))
        self.episode = Episode("e", task, LockWorld(task), 5, limits)

    def ask(self, messages, schemas=None):
        self.episode.go_on_from(messages, self.episode.now.schemas if schemas is None else schemas)
        return self.episode.add_reply(asyncio.run(self.policy.reply(self.episode)))

    @property
    def drawn(self):
        now = self.episode.now
        words = [self.codec.words[token] for token in now.token_ids]
        assert list(self.engine.requests[-1].token_ids) == now.token_ids[: -now.turns[-1].num_written]
        return (
            " ".join(words)
            + "\n"
            + " ".join(("^" if flag else ".") * len(word) for word, flag in zip(words, now.mask, strict=True))
        )


def test_a_conversation_that_only_grows_is_one_row():
    play = Play("call try_code {}", "done")
    first = play.ask(OPENING)
    play.ask([*OPENING, first, Message("tool", "shut", tool_call_id="call_1")])
    assert play.drawn == (
        "try_code be brief open agent: call try_code {} <stop> tool: shut agent: done <stop>\n"
        "........ .. ..... .... ...... ^^^^ ^^^^^^^^ ^^ ^^^^^^ ..... .... ...... ^^^^ ^^^^^^"
    )
    assert play.episode.num_forks == 0


def test_history_made_shorter_restarts_the_row_and_what_the_agent_had_written_is_read_as_given():
    play = Play("call try_code {}", "done")
    first = play.ask(OPENING)
    play.ask([USER, first, Message("tool", "shut", tool_call_id="call_1")])
    assert play.drawn == (
        "try_code open agent: call try_code {} <stop> tool: shut agent: done <stop>\n"
        "........ .... ...... .... ........ .. ...... ..... .... ...... ^^^^ ^^^^^^"
    )
    assert play.episode.num_forks == 1
    assert play.episode.messages == [USER, first, Message("tool", "shut", tool_call_id="call_1"), say("done")]


def test_a_turn_that_stands_keeps_its_tokens_when_a_later_one_is_rewritten():
    play = Play("one", "two", "three")
    first = play.ask(OPENING)
    play.ask([*OPENING, first, Message("user", "next")])
    play.ask([*OPENING, first, Message("user", "next"), say("zwei"), Message("user", "more")])
    assert play.drawn == (
        "try_code be brief open agent: one <stop> user: next agent: zwei <stop> user: more agent: three <stop>\n"
        "........ .. ..... .... ...... ^^^ ^^^^^^ ..... .... ...... .... ...... ..... .... ...... ^^^^^ ^^^^^^"
    )
    assert (play.episode.num_forks, play.episode.num_replies, len(play.episode.turns)) == (1, 3, 2)


def test_a_message_put_into_the_agents_mouth_is_never_trained_on():
    play = Play("one", "two")
    first = play.ask(OPENING)
    play.ask([*OPENING, first, say("planted"), Message("user", "next")])
    assert play.drawn == (
        "try_code be brief open agent: one <stop> agent: planted <stop> user: next agent: two <stop>\n"
        "........ .. ..... .... ...... ^^^ ^^^^^^ ...... ....... ...... ..... .... ...... ^^^ ^^^^^^"
    )
    assert play.episode.num_forks == 1


def test_examples_in_the_opening_are_read_and_are_no_fork():
    play = Play("one")
    play.ask([SYSTEM, Message("user", "example"), say("shown"), USER])
    assert play.drawn == (
        "try_code be brief example agent: shown <stop> user: open agent: one <stop>\n"
        "........ .. ..... ....... ...... ..... ...... ..... .... ...... ^^^ ^^^^^^"
    )
    assert play.episode.num_forks == 0


def test_who_returns_from_a_side_conversation_finds_its_tokens_again():
    play = Play("one", "a title", "two")
    first = play.ask(OPENING)
    play.ask([Message("user", "name this")], schemas=[])
    assert play.drawn == "name this agent: a title <stop>\n.... .... ...... ^ ^^^^^ ^^^^^^"
    play.ask([*OPENING, first, Message("user", "next")], schemas=play.episode.task_schemas())
    assert play.drawn == (
        "try_code be brief open agent: one <stop> user: next agent: two <stop>\n........ .. ..... .... ...... "
        "^^^ ^^^^^^ ..... .... ...... ^^^ ^^^^^^"
    )
    assert play.episode.num_forks == 2


def test_other_tools_stand_in_the_prompt_so_nothing_before_them_is_kept():
    play = Play("one", "two")
    first = play.ask(OPENING)
    other = {"type": "function", "function": {"name": "other", "description": "", "parameters": {}}}
    play.ask([*OPENING, first, Message("user", "next")], schemas=[other])
    assert play.drawn == (
        "other be brief open agent: one <stop> user: next agent: two <stop>\n..... .. ..... .... ...... ... "
        "...... ..... .... ...... ^^^ ^^^^^^"
    )


def test_a_request_that_was_given_up_and_made_again_is_no_fork():
    play = Play("one", "two")
    first = play.ask(OPENING)
    again = [*OPENING, first, say("planted"), Message("user", "next")]
    play.episode.go_on_from(again, play.episode.now.schemas)
    play.ask(again)
    assert play.episode.num_forks == 1
    assert play.drawn.startswith("try_code be brief open agent: one <stop> agent: planted <stop> user: next agent: two")


def test_an_opening_of_ones_own_that_leaves_no_room_ends_the_episode_and_stops_nobody_else():
    play = Play("one", limits=limits_of(9, 2, 6))
    assert play.ask([Message("user", "a b c d e f g")]) is None
    assert play.episode.trajectory(StopReason.TOKEN_LIMIT).token_ids == ()


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Message("assistant", "", None, (CALL,)), True),
        (Message("assistant", "", "because", (replace(CALL, id="x"),)), True),
        (Message("assistant", "", None, (replace(CALL, arguments='{ "code": "1" }'),)), True),
        (Message("assistant", "", None, (replace(CALL, arguments='{"code":1}'),)), False),
        (Message("assistant", "", None, (replace(CALL, name="jam"),)), False),
        (Message("assistant", "", "otherwise", (CALL,)), False),
        (Message("assistant", "so", None, (CALL,)), False),
        (Message("assistant", ""), False),
    ],
)
def test_a_message_is_the_same_however_it_is_written_down_and_another_when_it_says_another_thing(other, expected):
    assert is_same(Message("assistant", "", "because", (CALL,)), other) == expected


def test_numbers_are_the_same_only_as_they_are_written_in_json():
    one, float_one, true = (
        Message("assistant", tool_calls=(ToolCall("", "f", f'{{"a":{value}}}'),)) for value in ("1", "1.0", "true")
    )
    assert not is_same(one, float_one)
    assert not is_same(one, true)
    broken = Message("assistant", tool_calls=(ToolCall("", "", '{"a":'),))
    assert is_same(broken, broken)
