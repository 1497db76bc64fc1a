"""What is sampled is what is trained: the real codec, the toy world, and an engine that writes what
the expert says."""

from posttrain.models.codec import ChatCodec
from posttrain.models.tokenizer import train_tokenizer
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import TokenPolicy, expert_policy
from posttrain.worlds.toy.domain import ToyDomain
from tests.limits import limits_of
from tests.rollout.scripted_engine import ScriptedEngine
from tests.worlds_of import toy_params

LIMITS = limits_of(6, 100, 500)
WORLD = toy_params(num_sft_tasks=48)


def test_an_episode_by_tokens_is_the_training_row_of_the_same_conversation():
    domain = ToyDomain(WORLD)
    tasks = domain.tasks("sft", WORLD.num_sft_tasks)
    seeds = list(range(len(tasks)))
    expert = expert_policy(domain, is_flawless=True, reasoning_frac=0.5)
    spoken = run_episodes(expert, tasks, domain=domain, limits=LIMITS, seeds=seeds)
    names = {name for task in tasks for name in task.tools}
    codec = ChatCodec(
        train_tokenizer([play.messages for play in spoken], tool_names=names, vocab_size=500, max_length=500)
    )
    script = {
        play.seed: [codec.encode_assistant(message) for message in play.messages if message.role == "assistant"]
        for play in spoken
    }
    policy = TokenPolicy(ScriptedEngine(script), codec, temperature=1.0)
    written = run_episodes(policy, tasks, domain=domain, limits=LIMITS, seeds=seeds)
    for task, by_expert, by_tokens in zip(tasks, spoken, written, strict=True):
        row = codec.encode_row(by_expert.messages, [domain.tools[name].schema() for name in task.tools])
        assert by_tokens.messages == by_expert.messages
        assert (list(by_tokens.token_ids), list(by_tokens.mask)) == (row.input_ids, row.mask)
    assert max(len(play.messages) for play in spoken) > 6
