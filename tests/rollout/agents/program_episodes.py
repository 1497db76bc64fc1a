"""Episodes of an agent that is a program, against a scripted policy."""

import sys
from dataclasses import replace

from posttrain.rollout.agent_loops import AgentLoop
from posttrain.rollout.agents.openai_proxy import openai_loop
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.types import Message, StopReason, ToolCall
from tests.rollout.lock_world import LIMITS, LockDomain, ScriptedExpert, arguments_of, call, lock_task, say

TASK = lock_task(tools=("try_code",))
LINES = [
    call("try_code", arguments_of("000")),
    Message(
        "assistant",
        "again",
        "because",
        (ToolCall("", "try_code", arguments_of("1")), ToolCall("", "try_code", arguments_of("123"))),
    ),
    say("which lock?"),
    say("done"),
]


class Stateless:
    """Base of policies that keep nothing of an episode."""

    def release(self, episode):
        pass


def scripted(*lines):
    return ScriptedPolicy(lambda task, seed: ScriptedExpert(list(lines)))


def check_same_as_tools(played):
    """The loop of tools makes this record of `LINES`."""
    [expected] = run_episodes(scripted(*LINES), [TASK], domain=LockDomain(), limits=LIMITS, seeds=[5])
    assert played == expected
    assert expected.stop_reason == StopReason.DONE
    assert [run.outcome for turn in expected.turns for run in turn.tool_runs] == ["error", "ok", "ok"]


def play_loop(policy, loop: AgentLoop, *, task=TASK, limits=LIMITS, seeds=(5,), domain=None):
    sys.modules[__name__].agent_under_test = loop
    tasks = [replace(task, agent_name=f"{__name__}:agent_under_test")] * len(seeds)
    return run_episodes(policy, tasks, domain=domain or LockDomain(), limits=limits, seeds=list(seeds))


def play_with(policy, agent, **options):
    return play_loop(policy, openai_loop(agent), **options)


def play(agent, *lines, **options):
    [trajectory] = play_with(scripted(*lines), agent, **options)
    return trajectory
