import asyncio
from dataclasses import replace

import pytest

from posttrain.rollout.engines.protocol import EngineFailed
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, TokenPolicy
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.types import Message, Outcome, StopReason, ToolCall
from tests.limits import limits_of
from tests.rollout.agents.program_episodes import Stateless
from tests.rollout.lock_world import (
    LIMITS,
    EndingDomain,
    LockDomain,
    LockWorld,
    ScriptedExpert,
    WordCodec,
    arguments_of,
    call,
    lock_task,
    say,
)
from tests.rollout.scripted_engine import ScriptedEngine


def play(*lines, task=None, limits=LIMITS):
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert(list(lines)))
    [trajectory] = run_episodes(policy, [task or lock_task()], domain=LockDomain(), limits=limits, seeds=[5])
    return trajectory


def contents(trajectory, role):
    return [message.content for message in trajectory.messages if message.role == role]


def test_a_message_without_a_call_ends_the_episode_when_the_user_has_nothing_to_say():
    trajectory = play(call("try_code", arguments_of("123")), say("done"))
    assert [message.role for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert contents(trajectory, "tool") == ['{"open":true,"tries":1}']
    assert (trajectory.stop_reason, trajectory.seed, trajectory.token_ids) == (StopReason.DONE, 5, ())


def test_no_expert_is_kept_of_an_episode_that_is_over_or_aborted():
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert([call("jam", "{}"), say("done")][seed % 2 :]))
    limits = limits_of(4, 8, 40, max_aborted_frac=0.9)
    run_episodes(policy, [lock_task()] * 8, domain=LockDomain(), limits=limits, seeds=list(range(8)))
    assert policy._experts == {}


def test_the_user_answers_a_question_and_the_agent_goes_on():
    trajectory = play(say("which lock?"), say("done"))
    assert contents(trajectory, "user") == ["open", "the red one"]
    assert trajectory.stop_reason == StopReason.DONE


def test_the_calls_of_one_message_run_in_order_and_are_numbered_through_the_episode():
    two = Message(
        "assistant",
        tool_calls=(ToolCall("x", "try_code", arguments_of("1")), ToolCall("x", "try_code", arguments_of("2"))),
    )
    trajectory = play(two, call("try_code", arguments_of("123")), say("done"))
    assert contents(trajectory, "tool") == [
        '{"open":false,"tries":1}',
        '{"open":false,"tries":2}',
        '{"open":true,"tries":3}',
    ]
    assert [message.tool_call_id for message in trajectory.messages if message.role == "tool"] == [
        "call_1",
        "call_2",
        "call_3",
    ]
    assert [made.id for message in trajectory.messages for made in message.tool_calls] == ["call_1", "call_2", "call_3"]


@pytest.mark.parametrize(
    ("mistake", "answer"),
    [
        (call("fly", "{}"), '{"error":"no tool \'fly\' is offered"}'),
        (call("", "try it"), '{"error":"the call is not a JSON object with name and arguments"}'),
        (call("try_code", '{"code":'), '{"error":"arguments are not valid JSON: Expecting value at character 8"}'),
        (call("try_code", arguments_of("000")), '{"error":"000 is never right"}'),
    ],
)
def test_the_agents_own_mistake_is_an_error_that_it_reads(mistake, answer):
    trajectory = play(mistake, say("done"))
    assert contents(trajectory, "tool") == [answer]
    assert trajectory.stop_reason == StopReason.DONE


def test_a_tool_of_the_domain_that_the_task_does_not_offer_is_an_error():
    trajectory = play(call("jam", "{}"), say("done"), task=lock_task(tools=("try_code",)))
    assert contents(trajectory, "tool") == ['{"error":"no tool \'jam\' is offered"}']


def test_a_broken_tool_loses_the_episode_and_too_many_lost_ones_are_one_error():
    def play_two(max_aborted_frac):
        experts = {
            seed: ScriptedExpert(lines_of_seed)
            for seed, lines_of_seed in {0: [call("jam", "{}")] * 2, 1: [say("done")]}.items()
        }
        return run_episodes(
            ScriptedPolicy(lambda task, seed: experts[seed]),
            [lock_task()] * 2,
            domain=LockDomain(),
            limits=LIMITS.model_copy(update={"max_aborted_frac": max_aborted_frac}),
            seeds=[0, 1],
        )

    lost, played = play_two(0.5)
    assert (lost.stop_reason, lost.failure) == (StopReason.TOOL_FAILED, "jam({}) raised ZeroDivisionError: our bug")
    assert [message.role for message in lost.messages] == ["system", "user", "assistant", "tool"], "records are paired"
    assert played.stop_reason == StopReason.DONE
    with pytest.raises(
        Interrupted, match=r"1 of 2 episodes were aborted.*tool_failed: jam\({}\) raised ZeroDivisionError: our bug"
    ):
        play_two(0.49)


def test_a_lost_episode_is_played_again_from_the_start():
    calls = [call("try_code", arguments_of("1")), say("done")]

    class LostOnce(Stateless):
        def __init__(self):
            self.experts = {}

        async def reply(self, episode):
            if episode.episode_id not in self.experts:
                self.experts[episode.episode_id] = ScriptedExpert(list(calls))
            elif len(self.experts) == 1:
                raise EngineFailed("no server answers")
            return Reply(self.experts[episode.episode_id].reply(episode.messages))

    [trajectory] = run_episodes(LostOnce(), [lock_task()], domain=LockDomain(), limits=LIMITS, seeds=[1])
    assert trajectory.stop_reason == StopReason.DONE
    assert contents(trajectory, "tool") == ['{"open":false,"tries":1}'], "a world of its own"


def test_an_episode_that_takes_too_long_ends_as_time_limit_from_its_first_message_on():
    class Slow(Stateless):
        async def reply(self, episode):
            await asyncio.sleep(0.3 if not episode.turns else 5)
            return Reply(call("try_code", arguments_of("1")))

    [trajectory] = run_episodes(
        Slow(), [lock_task()], domain=LockDomain(), limits=LIMITS.model_copy(update={"max_seconds": 0.1}), seeds=[1]
    )
    assert trajectory.stop_reason == StopReason.TIME_LIMIT
    assert contents(trajectory, "tool") == ['{"open":false,"tries":1}']


def test_a_stop_tool_ends_the_episode_with_its_first_good_result():
    policy = ScriptedPolicy(
        lambda task, seed: ScriptedExpert([call("try_code", arguments_of("000")), call("try_code", arguments_of("1"))])
    )
    [trajectory] = run_episodes(policy, [lock_task()], domain=EndingDomain(), limits=LIMITS, seeds=[1])
    assert trajectory.stop_reason == StopReason.STOP_TOOL
    assert len(contents(trajectory, "tool")) == 2


async def reads_the_question_only(episode, policy):
    """A loop of a user's own."""
    episode.add_reply(await policy.reply(episode))
    return StopReason.STOP_TOOL


def test_a_loop_of_ones_own_is_named_by_module_and_function():
    task = replace(lock_task(), agent_name=f"{__name__}:reads_the_question_only")
    assert play(call("try_code", arguments_of("1")), task=task).stop_reason == StopReason.STOP_TOOL


@pytest.mark.parametrize("name", ["toolz", "no_such_module:loop", "posttrain.types:no_such_loop"])
def test_an_agent_name_that_is_none_is_refused(name):
    with pytest.raises(ConfigurationError, match=f"agent_name is '{name}'"):
        play(say("done"), task=replace(lock_task(), agent_name=name))


def test_the_last_turns_calls_are_still_answered():
    trajectory = play(*[call("try_code", arguments_of("1"))] * 4)
    assert trajectory.stop_reason == StopReason.TURN_LIMIT
    assert trajectory.messages[-1].role == "tool"
    assert len(contents(trajectory, "tool")) == 4


def test_a_done_in_the_last_turn_is_done():
    assert play(*[call("try_code", arguments_of("1"))] * 3, say("done")).stop_reason == StopReason.DONE


def test_every_episode_has_its_own_world_and_trajectories_come_in_task_order():
    tasks = [lock_task("a"), lock_task("b"), lock_task("a")]
    lines = {
        1: [call("try_code", arguments_of("1")), say("one")],
        2: [say("two")],
        3: [call("try_code", arguments_of("1")), say("three")],
    }
    seen = []
    trajectories = run_episodes(
        ScriptedPolicy(lambda task, seed: ScriptedExpert(lines[seed])),
        tasks,
        domain=LockDomain(),
        limits=LIMITS,
        seeds=[1, 2, 3],
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [trajectory.task_id for trajectory in trajectories] == ["a", "b", "a"]
    assert [trajectory.messages[-1].content for trajectory in trajectories] == ["one", "two", "three"]
    assert contents(trajectories[2], "tool") == ['{"open":false,"tries":1}']
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_as_many_seeds_as_tasks():
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert([]))
    with pytest.raises(ValueError, match="1 tasks but 2 seeds"):
        run_episodes(policy, [lock_task()], domain=LockDomain(), limits=LIMITS, seeds=[1, 2])


def test_when_one_episode_crashes_the_others_stop_and_all_are_released():
    released = []

    class OneCrashes:
        async def reply(self, episode: Episode) -> Reply:
            if episode.seed == 2:
                raise ConfigurationError("no such model")
            await asyncio.Event().wait()
            raise AssertionError

        def release(self, episode: Episode) -> None:
            released.append(episode.seed)

    with pytest.raises(ConfigurationError, match="no such model"):
        run_episodes(OneCrashes(), [lock_task()] * 3, domain=LockDomain(), limits=LIMITS, seeds=[1, 2, 3])
    assert sorted(released) == [1, 2, 3]


def token_play(messages, *, limits=LIMITS, tasks=None, logprob=-0.5):
    codec = WordCodec()
    engine = ScriptedEngine(
        {
            seed: [codec.ids(text) + ([0] if ends else []) for text, ends in lines]
            for seed, lines in enumerate(messages)
        },
        logprob=logprob,
    )
    tasks = tasks or [lock_task()] * len(messages)
    trajectories = run_episodes(
        TokenPolicy(engine, codec, temperature=1.0),
        tasks,
        domain=LockDomain(),
        limits=limits,
        seeds=list(range(len(messages))),
    )
    return codec, engine, trajectories


def test_tokens_are_what_the_engine_read_and_wrote_and_the_mask_marks_what_it_wrote():
    codec, engine, [trajectory] = token_play([[('call try_code {"code":"123"}', True), ("done", True)]])
    words = [codec.words[token] for token in trajectory.token_ids]
    read, written = "try_code jam locks open agent:", 'call try_code {"code":"123"} <stop>'
    assert words == [*read.split(), *written.split(), "tool:", '{"open":true,"tries":1}', "agent:", "done", "<stop>"]
    assert list(trajectory.mask) == [0] * 5 + [1] * 4 + [0] * 3 + [1] * 2
    assert list(trajectory.logprobs) == [-0.5 * is_written for is_written in trajectory.mask]
    assert trajectory.stop_reason == StopReason.DONE
    assert [len(request.token_ids) for request in engine.requests] == [5, 12]
    assert engine.released == ["t/0"]


def test_a_message_cut_at_its_limit_ends_the_episode_as_token_limit():
    _, _, [trajectory] = token_play([[("a b c d e f g h i j", True)]])
    assert trajectory.messages[-1].content == "a b c d e f g h"
    assert (trajectory.stop_reason, sum(trajectory.mask)) == (StopReason.TOKEN_LIMIT, 8)


def test_an_episode_never_grows_past_its_context():
    # 5 read, 4 written, then 3 to read: a context of 11 has no room for them, of 12 none to write,
    # of 13 for one token
    lines = [[('call try_code {"code":"123"}', True), ("done", True)]]
    for max_context_tokens, length, num_written in [(11, 9, 4), (12, 9, 4), (13, 13, 5)]:
        limits = limits_of(4, 8, max_context_tokens)
        _, _, [trajectory] = token_play(lines, limits=limits)
        assert (trajectory.stop_reason, len(trajectory.token_ids), sum(trajectory.mask)) == (
            StopReason.TOKEN_LIMIT,
            length,
            num_written,
        )


def test_a_task_whose_opening_fills_the_context_is_a_wrong_configuration():
    with pytest.raises(ConfigurationError, match="take 5 tokens"):
        token_play([[("done", True)]], limits=limits_of(1, 4, 5))


def test_a_groups_opening_is_encoded_once():
    codec, _, trajectories = token_play([[("done", True)]] * 3)
    assert codec.num_prompts_encoded == 1
    assert len({trajectory.token_ids for trajectory in trajectories}) == 1


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf")])
def test_a_token_without_a_log_probability_loses_the_episode_and_is_in_no_record(logprob):
    """One of them in a gradient makes all weights NaN. It is played twice."""
    lines = [[("a b", True), ("a b", True)]]
    _, engine, [trajectory] = token_play(
        lines, limits=LIMITS.model_copy(update={"max_aborted_frac": 1.0}), logprob=logprob
    )
    assert (trajectory.stop_reason, trajectory.logprobs) == (StopReason.ENGINE_LOST, ())
    assert trajectory.failure.startswith(
        f"ScriptedEngine gave a token of episode t/0/again the log-probability {logprob}"
    )
    assert engine.released == ["t/0", "t/0/again"]


def test_a_verdict_that_holds_no_number_loses_the_episode_and_not_the_batch():
    class Odd(LockWorld):
        def grade(self, trajectory):
            return Outcome(True, True, reward=float("nan") if trajectory.task_id == "t1" else 1.0)

    class OddDomain(LockDomain):
        def open(self, task):
            return Odd(task)

    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert([say("done")]))
    sound, odd = run_episodes(
        policy,
        [lock_task("t0"), lock_task("t1")],
        domain=OddDomain(),
        limits=limits_of(4, 8, 40, max_aborted_frac=0.5),
        seeds=[0, 0],
    )
    assert (sound.stop_reason, sound.outcome.reward) == (StopReason.DONE, 1.0)
    assert (odd.stop_reason, odd.outcome, odd.is_success) == (StopReason.TOOL_FAILED, None, False)
    assert odd.failure.startswith("the world's verdict cannot be used: an outcome's reward is nan")
