"""Episodes that are held while they are played, in the lock world."""

import io
from dataclasses import replace

import pytest

from posttrain.debug.live import LiveDebugger, LiveEpisodes, debug_live
from posttrain.debug.player import Player
from posttrain.rollout.policy import TokenPolicy
from posttrain.runtime.exits import ConfigurationError
from tests.debug.test_debugger import PLAYER, Guesser
from tests.rollout.lock_world import LIMITS, LockDomain, WordCodec, arguments_of, call, lock_task, say
from tests.rollout.scripted_engine import ScriptedEngine

TASKS = [lock_task(f"t{number}") for number in range(5)]


class Sure(Guesser):
    """Knows the code of one task."""

    async def reply(self, episode):
        if episode.task.task_id == "t3" and not any(one.role == "tool" for one in episode.messages):
            return replace(await super().reply(episode), message=call("try_code", arguments_of("123")))
        return await super().reply(episode)


def told(live, held, *lines):
    debugger = LiveDebugger(live, held, who="me")
    debugger.stdout = io.StringIO()
    ends = [debugger.onecmd(line) for line in lines]
    return debugger.stdout.getvalue().splitlines(), ends


def live_of(condition, **changes):
    player = replace(PLAYER, policy_at=lambda _: Sure(), **changes)
    return LiveEpisodes(TASKS, player, player, condition)


def test_an_episode_is_held_at_its_turn_while_the_others_go_on_and_goes_on_with_what_a_person_put_there():
    live = live_of("tool try_code code=2")
    held = [live.held.get(timeout=20) for _ in range(4)]  # all but t3 at once: none waits for another
    assert {one.session.task.task_id for one in held} == {"t0", "t1", "t2", "t4"}
    [first, *others] = held
    shown, _ = told(live, first, "turns", f"args {arguments_of('123')}", "fork 2")
    assert shown[:3] == ["branch 0: not finished", '  1  try_code({"code":"1"})', '* 2  try_code({"code":"2"})']
    assert "2 of 2 succeed" in shown
    assert told(live, first, "release")[1] == [True]
    for one in others:
        told(live, one, "release")
    assert live.held.get(timeout=20) is None
    succeeded = {one.task_id for one in live.played if one.is_strict_success}
    assert succeeded == {first.session.task.task_id, "t3"}


def test_quit_lets_all_go_on_by_themselves(capsys):
    live = live_of("tool try_code")
    told(live, live.held.get(timeout=20), "quit")
    debug_live(live, who="me")
    assert capsys.readouterr().out == "1 of 5 succeed\n"


def test_an_unknown_condition_and_an_error_of_the_policy_are_told():
    with pytest.raises(ConfigurationError, match="break where"):
        live_of("when it rains")
    player = replace(PLAYER, policy_at=lambda _: object.__new__(Broken))
    with pytest.raises(ZeroDivisionError):
        debug_live(LiveEpisodes(TASKS, player, PLAYER, "error"), who="me")


class Broken(Guesser):
    async def reply(self, episode):
        return 1 / 0


def test_what_a_person_wrote_is_context_to_the_model():
    codec = WordCodec()
    engine = ScriptedEngine(
        {0: [codec.encode_assistant(one) for one in (call("try_code", arguments_of("1")), say("done"))]}
    )
    player = Player("model", LockDomain(), LIMITS, lambda _: TokenPolicy(engine, codec, temperature=0.0), codec)
    live = LiveEpisodes(TASKS[:1], player, player, "tool try_code")
    held = live.held.get(timeout=20)
    told(live, held, f"args {arguments_of('123')}", "release")
    assert live.held.get(timeout=20) is None
    [played] = live.played
    assert played.is_strict_success
    assert [turn.num_written > 0 for turn in played.turns] == [False, True]
    assert len(played.token_ids) == len(played.mask) == len(played.logprobs)
