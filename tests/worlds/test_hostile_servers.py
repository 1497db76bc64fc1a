"""Environment servers that misbehave: a sentence each, and no crash."""

import asyncio
import re

import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.runtime.exits import Interrupted
from posttrain.worlds.http_env.domain import HttpEnvDomain
from posttrain.worlds.protocol import WorldFailed
from tests.limits import limits_of
from tests.rollout.lock_world import ScriptedExpert, say
from tests.worlds.hostile_env import STEPS, HostileEnv
from tests.worlds.test_http_env import params_of

LATE = {"drips", "silent"}


def sentence_of(kind, timeout_s=4.0):
    """The text that the agent reads, or the error that ends a run."""
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert([say("Action: go")] * 4))
    with HostileEnv(kind) as url:
        domain = HttpEnvDomain(params_of(url, name="hostile", timeout_s=timeout_s, tries=1))
        try:
            [played] = run_episodes(
                policy, domain.tasks("sft", 1), domain=domain, limits=limits_of(4, 8, 40), seeds=[0]
            )
        except Interrupted as error:
            return str(error)
    return f"{[message.content for message in played.messages[1:]]} reward {played.outcome.reward}"


@pytest.mark.parametrize("kind", sorted(set(STEPS) - LATE))
def test_a_server_that_misbehaves_is_told_in_a_sentence(kind):
    assert STEPS[kind][0] in sentence_of(kind)


@pytest.mark.parametrize("kind", sorted(LATE))
def test_a_server_that_answers_too_late_is_not_waited_for(kind):
    assert re.search(r"within 0\.2 s", sentence_of(kind, timeout_s=0.2))


def test_two_episodes_never_play_in_one_environment():
    async def resets(domain):
        first, second = (domain.open(task) for task in domain.tasks("sft", 2))
        await first.opening()
        with pytest.raises(WorldFailed, match="created the environment 7, which another episode plays in"):
            await second.opening()
        await second.close()
        await first.close()
        await second.opening()
        await second.close()

    with HostileEnv("no_http", ids=[7, 7, 7]) as url:
        asyncio.run(resets(HttpEnvDomain(params_of(url))))
