"""Episodes that begin behind recorded turns: the toy world with the real codec, and the lock's."""

import pytest

from posttrain.models.codec import ChatCodec
from posttrain.models.tokenizer import train_tokenizer
from posttrain.rewards.params import RewardParams
from posttrain.rewards.total import load_reward
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.expert_traces import ExpertTraces, given_turns
from posttrain.rollout.policy import TokenPolicy, expert_policy
from posttrain.rollout.prefix import END_OF_RECORD, PrefixEngine, PrefixPolicy, recorded_turns
from posttrain.types import StopReason
from posttrain.worlds.catalog import score_names
from posttrain.worlds.toy.domain import ToyDomain
from tests.limits import limits_of
from tests.rollout.lock_world import LIMITS as LOCK_LIMITS
from tests.rollout.lock_world import LockDomain, WordCodec, lock_task
from tests.rollout.scripted_engine import ScriptedEngine
from tests.worlds_of import toy_params

LIMITS = limits_of(6, 100, 500)
WORLD = toy_params(num_sft_tasks=24)
DOMAIN = ToyDomain(WORLD)
TASKS = DOMAIN.tasks("sft", WORLD.num_sft_tasks)
REWARD = RewardParams(weights={"completion": 1.0}, penalties={}, extra=[])


@pytest.fixture(scope="module")
def made():
    """An expert's episode of each task, a codec that knows their words, and the expert's traces."""
    expert = expert_policy(DOMAIN, is_flawless=True, reasoning_frac=0.0)
    shown = run_episodes(expert, TASKS, domain=DOMAIN, limits=LIMITS, seeds=[3] * len(TASKS))
    names = {name for task in TASKS for name in task.tools}
    messages = [episode.messages for episode in shown]
    codec = ChatCodec(train_tokenizer(messages, tool_names=names, vocab_size=500, max_length=500))
    reward = load_reward(REWARD, score_names(DOMAIN))
    return shown, codec, ExpertTraces(DOMAIN, codec, reward=reward, limits=LIMITS, reasoning_frac=0.0, seed=3)


def row_of(codec, episode, task):
    return codec.encode_row(episode.messages, [DOMAIN.tools[name].schema() for name in task.tools])


def own_messages(episode):
    return [message for message in episode.messages if message.role == "assistant"]


def test_a_trace_has_the_tokens_of_its_training_row_and_earns_what_a_success_does(made):
    shown, codec, traces = made
    for task, episode in zip(TASKS, shown, strict=True):
        [trace, other] = traces.traces(task, 2)
        row = row_of(codec, episode, task)
        assert (list(trace.token_ids), list(trace.mask)) == (row.input_ids, row.mask)
        assert (trace.reward, other.reward) == (1.0, 1.0)
        assert traces.traces(task, 1) == [trace]


def test_a_share_of_the_turns_is_given_and_never_the_last(made):
    shown, _, traces = made
    for task, episode in zip(TASKS, shown, strict=True):
        count = len(own_messages(episode))
        assert [len(traces.first_turns(task, share)) for share in (0.0, 0.5, 1.0)] == [0, count // 2, count - 1]


def test_given_messages_are_context_and_an_episode_by_tokens_is_the_training_row_of_its_conversation(made):
    """Half of the episodes begin behind the expert's turns, half at the beginning."""
    shown, codec, traces = made
    given = given_turns(traces, TASKS, [1.0, 0.0] * (len(TASKS) // 2))
    seeds = list(range(len(TASKS)))
    script = {
        seed: [codec.encode_assistant(message) for message in own_messages(episode)[len(own) :]]
        for seed, episode, own in zip(seeds, shown, given, strict=True)
    }
    keys = [(task.task_id, seed) for task, seed in zip(TASKS, seeds, strict=True)]
    policy = TokenPolicy(ScriptedEngine(script), codec, temperature=1.0)
    policy = PrefixPolicy(policy, codec, dict(zip(keys, given, strict=True)))
    episodes = run_episodes(policy, TASKS, domain=DOMAIN, limits=LIMITS, seeds=seeds)
    for one, by_expert, own, task in zip(episodes, shown, given, TASKS, strict=True):
        row = row_of(codec, by_expert, task)
        assert (one.messages, list(one.token_ids)) == (by_expert.messages, row.input_ids)
        assert sum(one.mask) == sum(row.mask) - sum(len(codec.encode_assistant(message)) for message in own)
        assert own or list(one.mask) == row.mask
        assert one.is_success
    assert max(map(len, given)) > 1
    assert max(map(len, (episode.messages for episode in shown))) > 6


TRY, AGAIN, DONE = 'call try_code {"code":"1"}', 'call try_code {"code":"123"}', "done"


def run_lock(engine, codec):
    limits = LOCK_LIMITS.model_copy(update={"max_aborted_frac": 1.0})
    policy = TokenPolicy(engine, codec, temperature=1.0)
    return run_episodes(policy, [lock_task()], domain=LockDomain(), limits=limits, seeds=[5])[0]


def scripted(codec, *lines):
    return ScriptedEngine({5: [[*codec.ids(line), 0] for line in lines]}, logprob=-0.25)


def test_an_episode_plays_on_from_any_turn_of_a_record():
    codec = WordCodec()
    recorded = run_lock(scripted(codec, TRY, AGAIN, DONE), codec)
    turns = recorded_turns(recorded)
    for num_turns in range(4):
        rest = (AGAIN, DONE) if num_turns < 2 else (TRY, DONE)
        found = run_lock(PrefixEngine(turns[:num_turns], scripted(codec, *rest)), codec)
        num_same = sum(len(turn.read) + len(turn.written) for turn in turns[:num_turns])
        assert found.token_ids[:num_same] == recorded.token_ids[:num_same]
        assert (found.mask[:num_same], found.logprobs[:num_same]) == (
            recorded.mask[:num_same],
            recorded.logprobs[:num_same],
        )
        assert (found.stop_reason, len(found.turns)) == (StopReason.DONE, 3 if num_turns == 3 else num_turns + 2)
    assert run_lock(PrefixEngine(turns), codec) == recorded


def test_without_another_engine_an_episode_that_goes_on_is_aborted():
    codec = WordCodec()
    recorded = run_lock(scripted(codec, TRY, DONE), codec)
    found = run_lock(PrefixEngine(recorded_turns(recorded)[:1]), codec)
    assert (found.stop_reason, found.failure) == (StopReason.ENGINE_LOST, END_OF_RECORD)


def test_a_recorded_message_is_cut_at_todays_limit():
    codec = WordCodec()
    recorded = run_lock(scripted(codec, "a b c d e f"), codec)
    policy = TokenPolicy(PrefixEngine(recorded_turns(recorded)), codec, temperature=1.0)
    limits = LOCK_LIMITS.model_copy(update={"max_new_tokens": 3})
    [found] = run_episodes(policy, [lock_task()], domain=LockDomain(), limits=limits, seeds=[5])
    assert (found.messages[-1].content, found.stop_reason) == ("a b c", StopReason.TOKEN_LIMIT)
