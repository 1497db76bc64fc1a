"""An episode that begins behind an expert's first turns: they are read, run in the world, and not
learnt from."""

from posttrain.models.codec import ChatCodec
from posttrain.models.tokenizer import train_tokenizer
from posttrain.rewards.params import RewardParams
from posttrain.rewards.total import load_reward
from posttrain.rollout.engines.scripted import ScriptedEngine
from posttrain.rollout.episodes import play_episodes
from posttrain.rollout.expert_traces import ExpertTraces, given_turns
from posttrain.rollout.policy import PrefixPolicy, TokenPolicy, expert_policy
from posttrain.worlds.catalog import score_names
from posttrain.worlds.toy.domain import ToyDomain
from tests.limits import limits_of
from tests.worlds_of import toy_params

LIMITS = limits_of(6, 100, 500)
WORLD = toy_params(num_sft_tasks=24)
DOMAIN = ToyDomain(WORLD)
TASKS = DOMAIN.tasks("sft", WORLD.num_sft_tasks)
REWARD = RewardParams(weights={"completion": 1.0}, penalties={}, extra=[])


def made():
    expert = expert_policy(DOMAIN, is_flawless=True, reasoning_frac=0.0)
    spoken = play_episodes(expert, TASKS, domain=DOMAIN, limits=LIMITS, seeds=[3] * len(TASKS))
    names = {name for task in TASKS for name in task.tools}
    codec = ChatCodec(
        train_tokenizer([play.messages for play in spoken], tool_names=names, vocab_size=500, max_length=500)
    )
    reward = load_reward(REWARD, score_names(DOMAIN))
    return spoken, codec, ExpertTraces(DOMAIN, codec, reward=reward, limits=LIMITS, reasoning_frac=0.0, seed=3)


def agents(play):
    return [message for message in play.messages if message.role == "assistant"]


def test_a_trace_has_the_tokens_of_its_training_row_and_earns_what_a_success_does():
    spoken, codec, traces = made()
    for task, play in zip(TASKS, spoken, strict=True):
        [trace, other] = traces.traces(task, 2)
        row = codec.encode_row(play.messages, [DOMAIN.tools[name].schema() for name in task.tools])
        assert (list(trace.token_ids), list(trace.mask)) == (row.input_ids, row.mask)
        assert (trace.reward, other.reward) == (1.0, 1.0)
        assert traces.traces(task, 1) == [trace], "played once"


def test_a_share_of_the_turns_is_given_and_never_the_last():
    spoken, _, traces = made()
    for task, play in zip(TASKS, spoken, strict=True):
        count = len(agents(play))
        assert [len(traces.first_turns(task, share)) for share in (0.0, 0.5, 1.0)] == [0, count // 2, count - 1]


def test_given_turns_are_read_and_played_and_what_follows_is_the_agents_own():
    spoken, codec, traces = made()
    given = given_turns(traces, TASKS, [1.0, 0.0] * (len(TASKS) // 2))
    seeds = list(range(len(TASKS)))
    script = {
        seed: [codec.encode_assistant(message) for message in agents(play)[len(own) :]]
        for seed, play, own in zip(seeds, spoken, given, strict=True)
    }
    own_policy = TokenPolicy(ScriptedEngine(script), codec, temperature=1.0)
    keys = [(task.task_id, seed) for task, seed in zip(TASKS, seeds, strict=True)]
    policy = PrefixPolicy(own_policy, codec, dict(zip(keys, given, strict=True)))
    played = play_episodes(policy, TASKS, domain=DOMAIN, limits=LIMITS, seeds=seeds)
    for one, by_expert, own in zip(played, spoken, given, strict=True):
        row = codec.encode_row(by_expert.messages, [DOMAIN.tools[name].schema() for name in one_task(one).tools])
        assert one.messages == by_expert.messages
        assert list(one.token_ids) == row.input_ids
        assert sum(one.mask) == sum(row.mask) - sum(len(codec.encode_assistant(message)) for message in own)
        assert one.is_success
    assert max(map(len, given)) > 1
    assert any(not own for own in given)


def one_task(play):
    return next(task for task in TASKS if task.task_id == play.task_id)
