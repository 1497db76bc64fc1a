"""One play against a server that misbehaves, and what comes of it in words."""

import sys
from pathlib import Path

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.worlds.http_env.domain import HttpEnvDomain
from posttrain.worlds.mcp import McpServer
from tests.limits import limits_of
from tests.rollout.lock_world import ScriptedExpert, call, lock_task, say
from tests.worlds import hostile_env, hostile_mcp
from tests.worlds.test_http_env import params_of
from tests.worlds.test_mcp import CounterDomain

PROGRAM = str(Path(hostile_mcp.__file__))


WANTED = {
    **{f"mcp.{kind}": words for kind, (words, _) in {**hostile_mcp.PAGES, **hostile_mcp.RESULTS}.items()},
    **{f"env.{kind}": words for kind, (words, _) in hostile_env.STEPS.items()},
}


def sentence_of(name, timeout_s=4.0, start_timeout_s=15.0):
    """What the agent reads, or the error that ends a run; `name` is one of WANTED."""
    which, kind = name.split(".")
    try:
        if which == "env":
            with hostile_env.HostileEnv(kind) as url:
                domain = HttpEnvDomain(params_of(url, name="hostile", timeout_s=timeout_s, tries=1))
                played = _played(domain, domain.tasks("sft", 1)[0], [say("Action: go")] * 4)
                return f"{[message.content for message in played.messages[1:]]} reward {played.outcome.reward}"
        server = McpServer(command=(sys.executable, PROGRAM, kind), start_timeout_s=start_timeout_s)
        played = _played(
            CounterDomain(server.tools(), server), lock_task(tools=("go",)), [call("go", "{}"), say("done")], timeout_s
        )
        return next(message.content for message in played.messages if message.role == "tool")
    except (ConfigurationError, Interrupted) as error:
        return str(error)


def _played(domain, task, script, timeout_s=10.0):
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert(list(script)))
    limits = limits_of(4, 8, 40, tool_timeout_s=timeout_s, max_result_chars=200)
    return run_episodes(policy, [task], domain=domain, limits=limits, seeds=[0])[0]
