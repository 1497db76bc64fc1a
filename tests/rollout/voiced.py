"""Episodes of a planner and its workers with the tokens of a model that had sampled what the expert
says, for tests of what two policies leave."""

from posttrain.data.schemas import conversations
from posttrain.models.codec import ChatCodec
from posttrain.models.tokenizer import train_tokenizer
from posttrain.rollout.episode import Reply
from posttrain.rollout.episodes import demonstrate
from posttrain.rollout.offers import staffed
from posttrain.rollout.params import WorkerParams
from posttrain.rollout.policy import TokenPolicy, expert_policy
from posttrain.worlds.catalog import example_params, make_domain
from tests.limits import limits_of

DOMAIN = staffed(make_domain(example_params("state_machine").model_copy(update={"renamed_frac": 0.0})))
TASKS = DOMAIN.tasks("rl", 4)
OWN = {"type": "own"}
BOTH = WorkerParams.model_validate({"max_turns": 8, "planner": OWN, "worker": OWN})
LIMITS = limits_of(30, 48, 900, worker=BOTH)


class Voiced:
    """The flawless expert in both roles, each of its tokens with a log-probability of -1/2."""

    def __init__(self, codec):
        self._codec, self._tokens = codec, TokenPolicy(None, codec, temperature=1.0)
        self._expert = expert_policy(DOMAIN, is_flawless=True, reasoning_frac=0.0)

    async def reply(self, episode):
        said = (await self._expert.reply(episode)).message
        ids = self._codec.encode_assistant(said)
        context, message = self._tokens.context_ids(episode), self._codec.parse(ids)
        return Reply(message, context_ids=context, token_ids=ids, logprobs=[-0.5] * len(ids))

    def release(self, episode):
        self._expert.release(episode)


def demonstrations():
    return demonstrate(DOMAIN, TASKS, limits=LIMITS, seed=1, is_flawless=True, reasoning_frac=0.0)


def codec_of(rows):
    names = {*DOMAIN.tools, "begin", "check", "confirm"}
    return ChatCodec(train_tokenizer(conversations(rows), tool_names=names, vocab_size=450, max_length=900))
