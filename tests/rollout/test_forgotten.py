"""What is over is forgotten: however many episodes were played, policy and engine refer to none of
them."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from posttrain.rollout.engines import vllm_engine
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.rollout.engines.vllm_engine import VllmEngine
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, TokenPolicy
from tests.limits import limits_of
from tests.rollout.lock_world import LockDomain, LockWorld, Reciter, WordCodec, call, lock_task, say
from tests.rollout.tiny_models import tiny_model
from tests.rollout.token_server import TokenServer

LIMITS = limits_of(3, 8, 60).model_copy(update={"max_aborted_frac": 1.0})
TASKS = [lock_task(f"task-{index}") for index in range(40)]


class SlowDomain(LockDomain):
    """Tools take their time, so that an episode that waits for one gives its slot to another."""

    def open(self, task):
        class World(LockWorld):
            def tools(self):
                return {name: replace(tool, is_instant=False) for name, tool in super().tools().items()}

        return World(task)


class Chatterbox(WordCodec):
    """Of a random model's messages half are calls and half are questions; any of eight tokens ends
    one."""

    stop_ids = frozenset(range(8))

    def parse(self, token_ids, tools):
        return call("try_code", '{"code":"1"}') if sum(token_ids) % 2 else say("which lock?")


def texts(thing: object, seen: set[int]) -> Iterator[str]:
    """Every text that can be reached through containers and our own objects."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, str):
        yield thing
    elif isinstance(thing, Mapping):
        for item in thing.items():
            yield from texts(item, seen)
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        for item in thing:
            yield from texts(item, seen)
    elif type(thing).__module__.startswith("posttrain."):
        names = [*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())]
        for name in names:
            yield from texts(getattr(thing, name, None), seen)


def play(policy, *, domain=None, tasks=TASKS):
    return run_episodes(policy, tasks, domain=domain or SlowDomain(), limits=LIMITS, seeds=list(range(len(tasks))))


def mentioned(policy) -> set[str]:
    """Episodes' ids are `task/index`; a task's own id may be known, for its prompt."""
    return {text for text in texts(policy, set()) if text.startswith("task-") and "/" in text}


@pytest.mark.parametrize("num_slots", [3, 64])
def test_the_torch_engine_knows_no_episode_that_is_over(num_slots):
    engine = TorchEngine(tiny_model("qwen3"), num_slots=num_slots, max_context_tokens=60)
    policy = TokenPolicy(engine, Chatterbox(), temperature=1.0)
    played = play(policy)
    assert sum(len(turn.tool_runs) for one in played for turn in one.turns) > len(TASKS) / 4
    assert mentioned(policy) == set()
    assert engine._table.num_used == 0


def test_no_expert_is_kept():
    lines = [call("jam", "{}"), say("done")]
    policy = ScriptedPolicy(lambda task, seed: Reciter(lines[seed % 2 :]))
    lost = [one for one in play(policy) if one.failure]
    assert (len(lost), mentioned(policy)) == (20, set())


def test_no_route_is_kept_to_a_server(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_engine, "_WATCH_S", 0.05)
    server = TokenServer()
    prompts = [[10 + index, 3] for index in range(5)]
    engine = VllmEngine(
        tiny_model("qwen3"),
        urls=lambda: [server.url],
        check_prompts=prompts,
        stop_ids=Chatterbox.stop_ids,
        folder=tmp_path,
    )
    try:
        policy = TokenPolicy(engine, Chatterbox(), temperature=1.0)
        play(policy, tasks=TASKS[:8])
        assert engine.policy_version == 0
    finally:
        engine.close()
        server.stop()
    assert mentioned(policy) == set()


def test_the_search_finds_an_episode_that_is_kept():
    engine = TorchEngine(tiny_model("qwen3"), num_slots=4, max_context_tokens=60)
    policy = TokenPolicy(engine, Chatterbox(), temperature=1.0)
    engine._table.take("task-0/0", seed=1)
    assert mentioned(policy) == {"task-0/0"}
