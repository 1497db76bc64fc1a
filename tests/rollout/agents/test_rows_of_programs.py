"""Sampled tokens are the trained ones, whoever keeps the conversation: a real model behind the real
engine, and three programs of one behaviour.

The model is random, so its agent babbles: most messages are calls of the lock's tool, any of eight
tokens ends one.
"""

import asyncio
import json
import sys
import zlib
from dataclasses import replace

import pytest

from posttrain.rollout.agents.langgraph import langgraph_loop
from posttrain.rollout.agents.openai_proxy import openai_loop
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import TokenPolicy
from posttrain.types import Message, StopReason, ToolCall
from tests.limits import limits_of
from tests.rollout.agents.test_langgraph import react as make_react_graph
from tests.rollout.agents.test_openai_proxy import client_of, react, react_in_a_thread
from tests.rollout.lock_world import LockDomain, lock_task
from tests.rollout.tiny_models import tiny_model

NUM_WORDS = 64
LIMITS = limits_of(6, 24, 300)


class BabbleCodec:
    """64 words: `w0` to `w7` end a message; one whose first word is `w8` to `w47` is a call with
    the rest as its code."""

    stop_ids = frozenset(range(8))

    def ids(self, text):
        return [zlib.crc32(word.encode()) % NUM_WORDS for word in text.split()]

    def encode_prompt(self, messages, tools):
        return self.ids(" ".join([json.dumps(list(tools)), *(message.content for message in messages), "agent:"]))

    def encode_assistant(self, message):
        raise AssertionError("nothing that the agent wrote is ever encoded again")

    def encode_results(self, messages, calls):
        return self.ids(" ".join([*(f"{message.role}: {message.content}" for message in messages), "agent:"]))

    def parse(self, token_ids, tools):
        words = [f"w{token}" for token in token_ids]
        if 8 <= token_ids[0] < 48:
            arguments = json.dumps({"code": " ".join(words[1:])}, separators=(",", ":"))
            return Message("assistant", words[0], None, (ToolCall("", "try_code", arguments),))
        return Message("assistant", " ".join(words))


class Watched(TorchEngine):
    """Keeps what it read and wrote, by seed."""

    def __init__(self):
        super().__init__(tiny_model("qwen3"), num_slots=4, max_context_tokens=300)
        self.seen = {}

    async def generate(self, request):
        generation = await super().generate(request)
        self.seen.setdefault(request.seed, []).append((list(request.token_ids), generation))
        return generation


def hangs_up(engine):
    """Like `react`, but hangs up while each answer is written, and asks again."""

    async def agent(task):
        async with client_of(task, max_retries=0) as client:
            messages = list(task.messages)
            while True:
                asking = asyncio.create_task(
                    client.chat.completions.create(model=task.model, messages=messages, tools=task.tools)
                )
                while not (engine._futures or asking.done()):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                message = (
                    (await client.chat.completions.create(model=task.model, messages=messages, tools=task.tools))
                    .choices[0]
                    .message
                )
                messages.append(message)
                if not message.tool_calls:
                    return
                for made in message.tool_calls:
                    content = await task.acall_tool(made.function.name, made.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": made.id, "content": content})

    return agent


plain = openai_loop(react)
threaded = openai_loop(react_in_a_thread)
graph = langgraph_loop(make_react_graph)


def play_group(agent_name, engine, seeds=range(10)):
    policy = TokenPolicy(engine, BabbleCodec(), temperature=1.0)
    task = replace(lock_task(tools=("try_code",)), agent_name=agent_name)
    played = run_episodes(policy, [task] * len(seeds), domain=LockDomain(), limits=LIMITS, seeds=list(seeds))
    assert not any([engine._ready, engine._waiting, engine._evicted, engine._futures, engine._table.num_used])
    return played


@pytest.fixture(scope="module")
def by_tools():
    return play_group("tools", Watched())


@pytest.mark.parametrize("name", ["plain", "threaded", "graph"])
def test_a_program_makes_the_rows_that_the_loop_of_tools_makes_and_they_are_what_the_engine_read_and_wrote(
    name, by_tools
):
    engine = Watched()
    by_program = play_group(f"{__name__}:{name}", engine)
    for expected, played in zip(by_tools, by_program, strict=True):
        assert (played.token_ids, played.mask, played.messages) == (
            expected.token_ids,
            expected.mask,
            expected.messages,
        )
        assert played.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
        assert (played.stop_reason, played.num_forks, len(played.turns)) == (
            expected.stop_reason,
            0,
            len(expected.turns),
        )
        token_ids, mask, logprobs = [], [], []
        for request_ids, generation in engine.seen[played.seed]:
            assert request_ids[: len(token_ids)] == token_ids
            num_read = len(request_ids) - len(token_ids)
            token_ids = [*request_ids, *generation.token_ids]
            mask += [0] * num_read + [1] * len(generation.token_ids)
            logprobs += [0.0] * num_read + list(generation.logprobs)
        assert (list(played.token_ids), list(played.mask), list(played.logprobs)) == (token_ids, mask, logprobs)


def test_the_group_has_episodes_of_many_turns_and_of_one(by_tools):
    num_turns = [len(played.turns) for played in by_tools]
    assert (min(num_turns), max(num_turns)) == (1, LIMITS.max_turns)
    assert {played.stop_reason for played in by_tools} >= {StopReason.DONE, StopReason.TURN_LIMIT}


def test_an_answer_that_was_hung_up_on_is_the_same_when_it_is_asked_for_again(by_tools):
    engine = Watched()
    sys.modules[__name__].impatient = openai_loop(hangs_up(engine))
    played = [play_group(f"{__name__}:impatient", engine, [expected.seed])[0] for expected in by_tools]
    assert [one.token_ids for one in played] == [expected.token_ids for expected in by_tools]
    assert {one.num_forks for one in played} == {0}
