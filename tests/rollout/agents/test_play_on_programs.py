"""Recorded episodes of programs are played on from every turn: LangGraph's graphs, clients of the
OpenAI proxy and tools of MCP servers begin anew and are given the recorded turns."""

import sys
from dataclasses import replace

import pytest

from posttrain.rollout.agents.langgraph import langgraph_loop
from posttrain.rollout.agents.openai_proxy import openai_loop
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.play_on import Fork, play_on
from posttrain.rollout.policy import TokenPolicy
from posttrain.types import Message, ToolCall
from tests.rollout.agents import test_langgraph, test_openai_proxy
from tests.rollout.lock_world import LIMITS, LockDomain, WordCodec, arguments_of, call, lock_task, say
from tests.rollout.scripted_engine import ScriptedEngine
from tests.worlds.test_mcp import TOOLS, CounterDomain, described  # noqa: F401  # a fixture

LINES = [call("try_code", arguments_of(code)) for code in ("1", "2")] + [say("which lock?"), say("done")]
PROGRAMS = {
    "client": openai_loop(test_openai_proxy.react),
    "client_in_a_thread": openai_loop(test_openai_proxy.react_in_a_thread),
    "langgraph": langgraph_loop(test_langgraph.react),
    "langgraph_in_threads": langgraph_loop(test_langgraph.react_in_threads),
    "langgraph_with_checkpoints": langgraph_loop(test_langgraph.with_checkpoints),
}
sys.modules[__name__].__dict__.update(PROGRAMS)


def engine_of(codec, lines):
    return ScriptedEngine({5: [codec.encode_assistant(line) for line in lines]})


def check_every_turn(task, lines, domain, limits):
    """From every turn on the engine is asked for the rest alone, and the episode is the same."""
    codec = WordCodec()
    policy = TokenPolicy(engine_of(codec, lines), codec, temperature=1.0)
    [recorded] = run_episodes(policy, [task], domain=domain, limits=limits, seeds=[5])
    assert len(recorded.turns) == len(lines)
    for at in range(1, len(lines) + 1):
        engine = engine_of(codec, lines[at - 1 :])
        policy = TokenPolicy(engine, codec, temperature=0.0)
        [branch] = play_on([Fork(task, recorded, at)], policy, domain=domain, limits=limits, codec=codec)
        assert (branch.trajectory, branch.differences) == (recorded, ())
        assert len(engine.requests) == len(lines) - at + 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_goes_on_from_every_turn(name):
    task = replace(lock_task(tools=("try_code",)), agent_name=f"{__name__}:{name}")
    check_every_turn(task, LINES, LockDomain(), LIMITS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_edited_call_is_what_the_program_runs(name):
    task = replace(lock_task(tools=("try_code",)), agent_name=f"{__name__}:{name}")
    codec = WordCodec()
    policy = TokenPolicy(engine_of(codec, LINES), codec, temperature=1.0)
    [recorded] = run_episodes(policy, [task], domain=LockDomain(), limits=LIMITS, seeds=[5])
    edited = Message("assistant", tool_calls=(ToolCall("", "try_code", arguments_of("123")),))
    policy = TokenPolicy(engine_of(codec, [say("done")]), codec, temperature=0.0)
    fork = Fork(task, recorded, 2, message=edited)
    [branch] = play_on([fork], policy, domain=LockDomain(), limits=LIMITS, codec=codec)
    assert (branch.is_success, recorded.is_success) == (True, False)
    assert sum(branch.trajectory.mask) == recorded.turns[0].num_written + branch.trajectory.turns[2].num_written


def test_tools_of_an_mcp_server_are_called_again(described):  # noqa: F811
    task = lock_task(tools=TOOLS)
    lines = [call("add", '{"number":2}'), call("add", '{"number":3}'), say("done")]
    check_every_turn(task, lines, CounterDomain(described), LIMITS.model_copy(update={"max_context_tokens": 400}))
