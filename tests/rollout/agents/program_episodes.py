"""Episodes of an agent that is a program, against a scripted policy."""

import sys
from dataclasses import replace

from posttrain.rollout.agents.openai_proxy import openai_loop
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from tests.rollout.lock_world import LIMITS, LockDomain, ScriptedExpert, lock_task

TASK = lock_task(tools=("try_code",))


def play_with(policy, agent, *, task=TASK, limits=LIMITS, seeds=(5,), domain=None):
    sys.modules[__name__].agent_under_test = openai_loop(agent)
    tasks = [replace(task, agent_name=f"{__name__}:agent_under_test")] * len(seeds)
    return run_episodes(policy, tasks, domain=domain or LockDomain(), limits=limits, seeds=list(seeds))


def play(agent, *lines, **options):
    [trajectory] = play_with(ScriptedPolicy(lambda task, seed: ScriptedExpert(list(lines))), agent, **options)
    return trajectory
