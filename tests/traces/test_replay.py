"""Replays list every difference of what the world answers, and nothing else."""

from dataclasses import replace

import pytest

from posttrain.runtime.exits import DataError
from posttrain.traces.replay import replay
from posttrain.traces.values import TracedEpisode
from posttrain.types import Message, StopReason, ToolCall
from posttrain.worlds.tools import ToolError, tool_from
from tests.limits import limits_of
from tests.rollout.lock_world import LIMITS, LockDomain, LockWorld, arguments_of, call, lock_task, say
from tests.traces.episodes import TRY_123, opened, spoken, written

ASKED = spoken(
    call("try_code", arguments_of("000")), say("which lock?"), call("try_code", arguments_of("123")), say("done")
)


class ChangedDomain(LockDomain):
    """`world` is made for every episode instead of the lock's."""

    def __init__(self, world: type[LockWorld]) -> None:
        super().__init__()
        self._world = world

    def open(self, task):
        return self._world(task)


def with_tool(answer):
    """A world whose `try_code` answers as `answer(code, number of tries)` does."""

    class World(LockWorld):
        def tools(self):
            def try_code(code: str) -> object:
                """Turn the wheels."""
                self.num_tries += 1
                return answer(code, self.num_tries)

            return {**super().tools(), "try_code": tool_from(try_code, is_instant=True)}

    return World


def other_code(code, num_tries):
    if code == "000":
        raise ToolError("000 is never right")
    return {"open": code == "321", "tries": num_tries, "lock": "red"}


def broken(code, num_tries):
    raise ZeroDivisionError("our bug")


def refusing(code, num_tries):
    raise ToolError("not now")


OTHER_CODE = with_tool(other_code)


class Silent(LockWorld):
    def user_reply(self, message):
        return None


class Talkative(LockWorld):
    def user_reply(self, message):
        return "and now?"


def texts(episode, world=LockWorld, **options):
    return [difference.text() for difference in replay(episode, ChangedDomain(world), LIMITS, **options)]


@pytest.mark.parametrize(
    "episode",
    [
        opened(),
        ASKED,
        spoken(call("jam", "{}")),
        spoken(*[call("try_code", arguments_of("1"))] * 4),
        written((TRY_123, True), ("done", True))[0],
        written(("a b c d e f g h i j", True))[0],
        spoken(call("try_code", '{"code":'), say("done")),
    ],
    ids=["opened", "asked", "aborted", "turn limit", "by tokens", "cut off", "malformed"],
)
def test_the_same_world_answers_the_same(episode):
    assert texts(episode) == []


def test_a_changed_result_is_shown_field_by_field():
    [text] = texts(opened(), OTHER_CODE)
    assert text.splitlines() == [
        "turn 1, tool try_code [call_1] (- recorded, + replayed)",
        '  -  "open": true,',
        '  +  "open": false,',
        '  -  "tries": 1',
        '  +  "tries": 1,',
        '  +  "lock": "red"',
    ]


def test_a_user_who_says_nothing_any_more_ends_the_episode_early():
    assert texts(ASKED, Silent) == [
        "turn 2, user (- recorded, + replayed)\n  - the red one",
        'turn 3, assistant (- recorded, + replayed)\n  - → try_code {"code":"123"}',
        'turn 3, tool try_code [call_2] (- recorded, + replayed)\n  - {"open":true,"tries":2}',
        "turn 4, assistant (- recorded, + replayed)\n  - done",
    ]


def test_a_user_who_goes_on_where_the_episode_ended_is_shown():
    assert texts(opened(), Talkative) == [
        "turn 2, user (- recorded, + replayed)\n  + and now?",
        "end (- recorded, + replayed)\n  - done\n  + the recording has no further message, and the episode goes on",
    ]


def test_a_tool_that_fails_now_is_shown_with_its_reason():
    *_, end = texts(ASKED, with_tool(broken))
    assert end == (
        "end (- recorded, + replayed)\n  - done\n  + tool_failed: "
        'try_code({"code":"000"}) raised ZeroDivisionError: our bug'
    )


def test_other_limits_are_a_difference():
    assert [difference.where for difference in replay(ASKED, LockDomain(), limits_of(3, 8, 40))] == [
        "turn 4, assistant",
        "end",
    ]


def test_tokens_are_fed_back_and_those_in_between_compared():
    episode, codec = written((TRY_123, True), ("done", True))
    assert texts(episode, codec=codec) == []
    wheels, tokens = texts(episode, OTHER_CODE, codec=codec)
    assert wheels.startswith("turn 1, tool try_code [call_1]")
    recorded, replayed = (
        codec.words.index(word) for word in ('{"open":true,"tries":1}', '{"open":false,"tries":1,"lock":"red"}')
    )
    assert tokens == f"turn 2, token ids read (- recorded, + replayed)\n  - {recorded}\n  + {replayed}"


def test_a_codec_that_reads_the_ids_otherwise_is_shown():
    episode, codec = written((TRY_123, True), ("done", True))
    codec.parse = lambda token_ids, tools: Message("assistant", "what?")
    first, *_ = texts(episode, codec=codec)
    assert first == 'turn 1, assistant (- recorded, + replayed)\n  - → try_code {"code":"123"}\n  + what?'


def test_tokens_without_turns_cannot_be_fed_back():
    episode, codec = written(("done", True))
    without = replace(episode, trajectory=replace(episode.trajectory, turns=()))
    with pytest.raises(DataError, match="has 7 token ids in 0 turns"):
        replay(without, LockDomain(), LIMITS, codec)
    with pytest.raises(DataError, match="has 0 token ids"):
        replay(opened(), LockDomain(), LIMITS, codec)


@pytest.mark.parametrize("stop", [StopReason.TIME_LIMIT, StopReason.ENGINE_LOST])
def test_an_end_from_outside_is_none_of_the_worlds(stop):
    """After the first call the clock, or the engine, ended the episode; its second call was never
    answered."""
    two = Message("assistant", tool_calls=(ToolCall("x", "try_code", arguments_of("1")),))
    played = spoken(call("try_code", arguments_of("1")), two, say("done")).trajectory
    cut = replace(
        played,
        messages=(*played.messages[:5], Message("tool", f'{{"error":"{stop}"}}', tool_call_id="call_2")),
        turns=(played.turns[0], replace(played.turns[1], tool_runs=())),
        stop_reason=stop,
    )
    assert texts(TracedEpisode(cut, lock_task())) == []


def test_equal_fields_written_otherwise_are_still_a_difference():
    episode = opened()
    messages = list(episode.trajectory.messages)
    messages[3] = replace(messages[3], content='{"open": true, "tries": 1}')
    recorded = TracedEpisode(replace(episode.trajectory, messages=tuple(messages)), episode.task)
    assert texts(recorded) == [
        'turn 1, tool try_code [call_1] (- recorded, + replayed)\n  - {"open": true, "tries": '
        '1}\n  + {"open":true,"tries":1}'
    ]


def test_a_call_that_ended_otherwise_is_shown():
    *_, call_ended = texts(opened(), with_tool(refusing))
    where = "turn 1, call of try_code [call_1] (- recorded, + replayed)"
    assert call_ended == f"{where}\n  - ok at attempt 1\n  + error at attempt 1"
