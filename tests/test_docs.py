"""The recipes of docs/your-world-and-agent.md are run as they stand there."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.types import SPLITS, StopReason, Trajectory
from posttrain.worlds.catalog import make_domain
from posttrain.worlds.params import OwnWorldParams
from tests.limits import limits_of
from tests.rollout.lock_world import ScriptedExpert, call, lock_task, say

LIMITS = limits_of(6, 8, 40)


@pytest.fixture
def ours(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The files that the recipes name, in a folder that can be imported from; and the domain that a
    name there makes."""
    text = (repository / "docs/your-world-and-agent.md").read_text(encoding="utf-8")
    (tmp_path / "ours").mkdir()
    for path, source in re.findall(r"```python\n# (ours/\w+\.py)\n(.*?)```", text, flags=re.DOTALL):
        (tmp_path / path).write_text(source, encoding="utf-8")
    server = (repository / "tests/worlds/mcp_server.py").read_text(encoding="utf-8")
    (tmp_path / "ours/counter_server.py").write_text(server, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "ours"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")

    def domain(name: str):
        return make_domain(
            OwnWorldParams(type=name, seed=7, num_sft_tasks=1, num_rl_tasks=1, num_dev_tasks=1, num_test_tasks=1)
        )

    yield domain
    for name in [name for name in sys.modules if name.split(".")[0] == "ours"]:
        del sys.modules[name]


def test_in_the_world_of_the_recipe_the_gold_expert_succeeds_and_an_empty_episode_does_not(ours):
    domain = ours("ours.dice:Dice")
    tasks = [task for split in SPLITS for task in domain.tasks(split, 8)]
    tasks += [domain.regenerate(task, seed=5) for task in tasks]
    assert len({task.task_id for task in tasks}) == len(tasks)
    expert = expert_policy(domain, is_flawless=True, reasoning_frac=0.0)
    played = run_episodes(expert, tasks, domain=domain, limits=LIMITS, seeds=[0] * len(tasks))
    assert all(trajectory.is_strict_success for trajectory in played)
    empty = [Trajectory(task.task_id, task.messages, StopReason.DONE) for task in tasks]
    assert not any(domain.open(task).grade(one).success for task, one in zip(tasks, empty, strict=True))


@pytest.mark.parametrize("agent", ["ours.agents:research", "ours.agents:plain"])
def test_the_agents_of_the_recipe_play_as_the_loop_of_tools_does(ours, agent):
    domain = ours("ours.agents:PlayedByResearch")
    tasks = domain.tasks("dev", 3)
    assert {task.agent_name for task in tasks} == {"ours.agents:research"}
    expert = expert_policy(domain, is_flawless=True, reasoning_frac=0.0)
    played, expected = (
        run_episodes(
            expert, [replace(task, agent_name=name) for task in tasks], domain=domain, limits=LIMITS, seeds=[0] * 3
        )
        for name in (agent, "tools")
    )
    assert played == expected


def test_the_server_of_the_recipe_counts_for_each_episode_anew(ours):
    domain = ours("ours.counter:Counter")
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert([call("add", '{"number":2}'), say("done")]))
    played = run_episodes(policy, [lock_task(tools=("add",))] * 2, domain=domain, limits=LIMITS, seeds=[0, 1])
    assert [trajectory.messages[3].content for trajectory in played] == ['{"count":2}'] * 2
