"""Recorded episodes of the toy world, played on from each of their turns."""

import json
from dataclasses import replace

import pytest

from posttrain.models.codec import ChatCodec
from posttrain.models.tokenizer import train_tokenizer
from posttrain.rollout.episode import Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.play_on import Fork, play_on
from posttrain.rollout.policy import TokenPolicy, expert_policy
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.types import Message, StopReason
from posttrain.worlds.toy.domain import ToyDomain
from tests.limits import limits_of
from tests.rollout.scripted_engine import ScriptedEngine
from tests.worlds_of import TOY_FLAWS, toy_params

LIMITS = limits_of(6, 100, 500)
FLAWS = dict.fromkeys(TOY_FLAWS, 0.0) | {"wrong_shop": 1.0, "look_alike": 1.0}
WORLD = toy_params(num_rl_tasks=24, flaw_rates=FLAWS)
DOMAIN = ToyDomain(WORLD)
TASKS = DOMAIN.tasks("rl", WORLD.num_rl_tasks)
SEEDS = list(range(len(TASKS)))
EXPERT = expert_policy(DOMAIN, is_flawless=True, reasoning_frac=0.0)


def episodes(*, is_flawless=False):
    policy = expert_policy(DOMAIN, is_flawless=is_flawless, reasoning_frac=0.0)
    return run_episodes(policy, TASKS, domain=DOMAIN, limits=LIMITS, seeds=SEEDS)


def own(trajectory):
    return [message for message in trajectory.messages if message.role == "assistant"]


@pytest.fixture(scope="module")
def codec():
    shown = [one.messages for one in [*episodes(), *episodes(is_flawless=True)]]
    names = {name for task in TASKS for name in task.tools}
    return ChatCodec(train_tokenizer(shown, tool_names=names, vocab_size=600, max_length=500))


@pytest.fixture(scope="module")
def recorded(codec):
    """The flawed expert's episodes as a model would have sampled them."""
    script = {
        seed: [codec.encode_assistant(one) for one in own(episode)]
        for seed, episode in zip(SEEDS, episodes(), strict=True)
    }
    policy = TokenPolicy(ScriptedEngine(script), codec, temperature=1.0)
    return run_episodes(policy, TASKS, domain=DOMAIN, limits=LIMITS, seeds=SEEDS)


def every_turn(recorded):
    """Each episode is played on from another turn, from its first to its last."""
    return [
        Fork(task, one, at=1 + number % len(one.turns))
        for number, (task, one) in enumerate(zip(TASKS, recorded, strict=True))
    ]


def rest(codec, forks, *more):
    """An engine that has the rest of each episode, and nothing for the turns before it."""
    return ScriptedEngine(
        {
            fork.trajectory.seed: [*more, *(codec.encode_assistant(one) for one in own(fork.trajectory)[fork.at - 1 :])]
            for fork in forks
        }
    )


class Silent:
    async def reply(self, episode):
        return Reply(Message("assistant", "ANSWER: none"))

    def release(self, episode): ...


def play(forks, policy, max_turns=LIMITS.max_turns, **options):
    limits = LIMITS.model_copy(update={"max_turns": max_turns})
    return play_on(forks, policy, domain=DOMAIN, limits=limits, **options)


def codec_policy(codec, whole, at):
    """A model that has one turn of the episode."""
    script = {whole.seed: [codec.encode_assistant(own(whole)[at - 1])]}
    return TokenPolicy(ScriptedEngine(script), codec, temperature=0.0)


def test_an_engine_that_has_only_the_rest_gives_the_recorded_episode(codec, recorded):
    forks = every_turn(recorded)
    engine = rest(codec, forks)
    branches = play(forks, TokenPolicy(engine, codec, temperature=0.0), codec=codec)
    assert [branch.trajectory for branch in branches] == recorded
    assert {len(branch.differences) for branch in branches} == {0}
    assert len(engine.requests) == sum(fork.num_dropped for fork in forks)
    assert {fork.at for fork in forks} >= {1, 2, 3}


def test_turn_by_turn_the_recorded_episode_comes_out(codec, recorded):
    """Each step plays one turn on from where the step before it was stopped."""
    for task, whole in list(zip(TASKS, recorded, strict=True))[:6]:
        played = play([Fork(task, whole, 1)], codec_policy(codec, whole, 1), codec=codec, max_turns=1)
        for at in range(2, len(whole.turns) + 1):
            assert played[0].trajectory.stop_reason is StopReason.TURN_LIMIT
            fork = Fork(task, played[0].trajectory, at)
            played = play([fork], codec_policy(codec, whole, at), codec=codec, max_turns=at)
        assert (played[0].trajectory, played[0].differences) == (whole, ())
    with pytest.raises(DataError, match="cannot be played on from turn"):
        play([Fork(task, whole, len(whole.turns) + 1)], EXPERT)


def test_behind_an_edited_message_a_branch_is_played_on_with_its_tokens(codec, recorded):
    for task, whole in list(zip(TASKS, recorded, strict=True))[:4]:
        edited = Fork(task, whole, 1, message=own(whole)[0])
        engine = rest(codec, [Fork(task, whole, 2)])
        [branch] = play([edited], TokenPolicy(engine, codec, temperature=0.0), codec=codec)
        assert [turn.num_written > 0 for turn in branch.trajectory.turns] == [False] + [True] * (len(whole.turns) - 1)
        for at in range(2, len(whole.turns) + 1):
            engine = rest(codec, [Fork(task, whole, at)])
            [again] = play(
                [Fork(task, branch.trajectory, at)], TokenPolicy(engine, codec, temperature=0.0), codec=codec
            )
            assert (again.trajectory, again.differences) == (branch.trajectory, ())


def test_without_a_codec_the_messages_are_given_back(recorded):
    own_expert = expert_policy(DOMAIN, is_flawless=False, reasoning_frac=0.0)
    branches = play(every_turn(recorded), own_expert)
    assert [branch.trajectory.messages for branch in branches] == [one.messages for one in recorded]


def test_a_flawless_expert_mends_a_failure_before_its_wrong_call(recorded):
    failed = [(task, one) for task, one in zip(TASKS, recorded, strict=True) if not one.is_strict_success]
    branches = play([Fork(task, one, at=1) for task, one in failed], EXPERT)
    assert len(failed) > 5
    assert all(branch.is_strict_success for branch in branches)


def test_an_edited_message_is_read_and_not_trained_on(codec, recorded):
    right = {one.task_id: one for one in episodes(is_flawless=True)}
    forks = [
        Fork(task, one, at=1, message=own(right[task.task_id])[0])
        for task, one in zip(TASKS, recorded, strict=True)
        if len(own(right[task.task_id])) > 1
    ]
    script = {
        fork.trajectory.seed: [codec.encode_assistant(one) for one in own(right[fork.task.task_id])[1:]]
        for fork in forks
    }
    branches = play(forks, TokenPolicy(ScriptedEngine(script), codec, temperature=0.0), codec=codec)
    for fork, branch in zip(forks, branches, strict=True):
        found, as_shown = branch.trajectory, right[fork.task.task_id]
        assert found.messages == as_shown.messages
        row = codec.encode_row(as_shown.messages, [DOMAIN.tools[name].schema() for name in fork.task.tools])
        assert list(found.token_ids) == row.input_ids
        assert sum(found.mask) == sum(row.mask) - len(codec.encode_assistant(fork.message))
        assert branch.is_success


@pytest.mark.parametrize("at", [2, 3])
def test_a_changed_world_is_told_at_its_turn_and_stops_unless_it_is_allowed(codec, recorded, monkeypatch, at):
    [fork] = [replace(fork, at=at) for fork in every_turn(recorded) if fork.at == 3][:1]
    old = fork.trajectory.messages[len(fork.task.messages) + 1]
    world = DOMAIN.open(fork.task)
    name = own(fork.trajectory)[0].tool_calls[0].name
    changed = {**world.tools(), name: replace(world.tools()[name], function=lambda **_: {"changed": 1})}
    monkeypatch.setattr(type(world), "tools", lambda _: changed)
    engine = rest(codec, [fork])
    policy = TokenPolicy(engine, codec, temperature=0.0)
    with pytest.raises(DataError, match=r"before turn 2: tool .* was recorded, now it is tool .*changed"):
        play([fork], policy, codec=codec)
    assert not engine.requests
    [branch] = play([fork], policy, codec=codec, differing="allow")
    assert any(old.content in one for one in branch.differences)
    assert ("turn 2: other token ids are read than were recorded" in branch.differences) is (at > 2)


def test_an_edited_result_is_read_and_its_outcome_counts_for_nothing(codec, recorded):
    [fork] = [fork for fork in every_turn(recorded) if fork.at == 2 and own(fork.trajectory)[0].tool_calls][:1]
    call = own(fork.trajectory)[0].tool_calls[0]
    fork = replace(fork, results={call.id: '{"code":"edited"}'})
    [branch] = play([fork], Silent())
    assert branch.trajectory.messages[len(fork.task.messages) + 1].content == '{"code":"edited"}'
    assert (branch.counts, branch.is_success) == (False, False)
    with pytest.raises(DataError, match="no result before this turn answers call_99"):
        play([replace(fork, results={"call_99": ""})], Silent())


def test_stubbed_tools_answer_as_recorded_run_nothing_and_fail_for_another_call(recorded):
    [fork] = [fork for fork in every_turn(recorded) if fork.at == 2 and own(fork.trajectory)[0].tool_calls][:1]
    own_expert = expert_policy(DOMAIN, is_flawless=False, reasoning_frac=0.0)
    [branch] = play([fork], own_expert, tools="stub")
    assert branch.trajectory.messages == fork.trajectory.messages
    assert (branch.counts, branch.is_success) == (False, False)
    call = own(fork.trajectory)[0].tool_calls[0]
    unknown = json.dumps(dict.fromkeys(json.loads(call.arguments), "x"))
    other = Message("assistant", tool_calls=(replace(call, arguments=unknown),))
    may_abort = LIMITS.model_copy(update={"max_aborted_frac": 1.0})
    [branch] = play_on([replace(fork, message=other)], Silent(), domain=DOMAIN, limits=may_abort, tools="stub")
    assert branch.trajectory.stop_reason is StopReason.TOOL_FAILED
    assert "is recorded: play on with live tools" in branch.trajectory.failure


def test_branches_have_seeds_of_their_own_and_refuse_what_is_not_there(recorded):
    fork = Fork(TASKS[0], recorded[0], at=1, num=3, seed=5)
    assert len({*fork.seeds(), *replace(fork, seed=6).seeds()}) == 6
    assert len(play([fork], EXPERT)) == 3
    with pytest.raises(ConfigurationError, match="same seed"):
        play([fork, fork], EXPERT)
    with pytest.raises(ConfigurationError, match="need a seed"):
        replace(fork, seed=None).seeds()
    for at in (0, len(recorded[0].turns) + 1):
        with pytest.raises(DataError, match="cannot be played on from turn"):
            play([replace(fork, at=at)], EXPERT)
    with pytest.raises(DataError, match="play the task anew"):
        play([replace(fork, trajectory=replace(recorded[0], num_forks=1))], EXPERT)


def test_side_effects_are_those_of_dropped_turns_that_are_not_undone(recorded):
    tools = DOMAIN.open(TASKS[0]).tools()
    fork = Fork(TASKS[0], recorded[0], at=1)
    assert fork.side_effects(tools) == []
    writing = {name: replace(tool, side_effect="reversible") for name, tool in tools.items()}
    called = [run.name for turn in recorded[0].turns for run in turn.tool_runs if run.outcome == "ok"]
    assert fork.side_effects(writing) == list(dict.fromkeys(called))
    assert replace(fork, at=len(recorded[0].turns)).num_dropped == 1
