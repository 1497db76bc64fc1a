"""verifiers and OpenEnv, each in an environment of its own, play our worlds, and an environment of
verifiers is a world of ours. The reward of every episode is that of our own loop.

The model is a script behind an endpoint of this machine: the world's expert, found by the question.
"""

import contextlib
import json
import os
import subprocess
import sys
import textwrap

import pytest

from posttrain.export.world_folder import load_exported, write_world_folder
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy, expert_policy
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message
from posttrain.worlds.catalog import make_domain, world_params
from posttrain.worlds.verifiers.domain import PYTHON
from tests.conftest import REPOSITORY
from tests.console import posttrain
from tests.rollout.openai_endpoint import Endpoint, answer_of

pytestmark = [pytest.mark.needs_trainers, pytest.mark.xdist_group("trainers")]

TRAINERS = REPOSITORY / "infra" / "trainers"
VERIFIERS, OPENENV = (TRAINERS / name / ".venv" / "bin" for name in ("verifiers", "openenv"))
REVERSED = """
import verifiers.v1 as vf

__all__ = ["ReversedTaskset"]


class WordData(vf.TaskData):
    word: str


class WordTask(vf.Task[WordData]):
    @vf.reward
    async def is_reversed(self, trace):
        return float(trace.branches[-1].messages[-1].content == self.data.word[::-1])


class ReversedTaskset(vf.Taskset[WordTask]):
    def load(self):
        for word in ("stone", "river", "cloud", "amber", "north", "piano"):
            data = WordData(prompt=f"Write backwards: {word}", system_prompt="One word.", word=word)
            yield WordTask(data, self.config.task)
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """`exported(world, trainer)`: the folder and the world in it."""

    def make(name, trainer):
        folder = tmp_path_factory.mktemp(name)
        write_world_folder(name, folder, trainer)
        return folder, load_exported(folder)

    return make


@contextlib.contextmanager
def served(folder):
    """The URL of `posttrain serve-env` in a process of its own."""
    command = [sys.executable, "-u", "-m", "posttrain.cli.main", "serve-env", str(folder), "--port", "0"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().split()[1]
        finally:
            server.terminate()


def experts_of(world, tasks, is_flawless):
    """The expert's next message in a conversation of OpenAI's format."""
    by_question = {task.messages[-1].content: task for task in tasks}

    def script(_, body):
        messages = [Message.from_openai(one) for one in body["messages"]]
        task = by_question[next(one.content for one in messages if one.role == "user")]
        expert = world.domain.expert(task, seed=1, is_flawless=is_flawless, reasoning_frac=0.0)
        for place, message in enumerate([*messages, None]):
            if message is None or message.role == "assistant":
                said = expert.reply(messages[:place])
        calls = [(call.name, call.arguments) for call in said.tool_calls]
        return answer_of(said.content, calls, "tool_calls" if calls else "stop")

    return script


def rewards_of_ours(world, tasks, is_flawless):
    policy = expert_policy(world.domain, is_flawless=is_flawless, reasoning_frac=0.0)
    played = run_episodes(policy, tasks, domain=world.domain, limits=world.limits, seeds=[1] * len(tasks))
    return {task.task_id: world.reward.score(one, task).reward for task, one in zip(tasks, played, strict=True)}


def evaluated_by_verifiers(folder, module, url, endpoint, count, *options):
    """The trace of each episode, by the id of its task."""
    command = [VERIFIERS / "vf-eval", module, "--model", "m", "--client.base-url", endpoint.base_url, *options]
    command += ["--client.api-key-var", "KEY", "--select.limit", str(count), "-c", "8", "--no-push", "--no-rich"]
    environment = os.environ | {"KEY": "any", "POSTTRAIN_ENV_URL": url, "PYTHONPATH": str(folder)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=500)
    newest = max(folder.glob("outputs/*/traces.jsonl"), key=lambda file: file.stat().st_mtime)
    episodes = [json.loads(line) for line in newest.read_text().splitlines()]
    return {one["traces"][0]["task"]["data"]["id"]: one["traces"][0] for one in episodes}


def test_verifiers_plays_the_stock_world_and_a_hundred_of_a_hundred_episodes_earn_our_reward(exported):
    folder, world = exported("stocks", "verifiers")
    tasks = world.tasks("rl")[:100]
    with served(folder) as url:
        for is_flawless, options in ((True, ()), (False, ("--env.taskset.split", "rl"))):
            endpoint = Endpoint(experts_of(world, world.tasks("rl"), is_flawless))
            traces = evaluated_by_verifiers(folder, "posttrain_stocks", url, endpoint, 100, *options)
            endpoint.stop()
            rewards = {name: trace["rewards"]["world_reward"]["score"] for name, trace in traces.items()}
            assert rewards == rewards_of_ours(world, tasks, is_flawless)
            assert len({*rewards.values()}) == 1 if is_flawless else len({*rewards.values()}) > 5
        assert {tool["function"]["name"] for tool in endpoint.bodies[0]["tools"]} <= {*world.domain.tools}


def test_an_episode_that_verifiers_ends_at_its_own_limit_is_graded(exported):
    folder, world = exported("calculator", "verifiers")
    endpoint = Endpoint(experts_of(world, world.tasks("rl"), True))
    with served(folder) as url:
        options = ("--env.agent.max-turns", "1")
        traces = evaluated_by_verifiers(folder, "posttrain_calculator", url, endpoint, 3, *options)
    endpoint.stop()
    assert [trace["rewards"]["world_reward"]["score"] for trace in traces.values()] == [0.05] * 3
    assert {trace["stop_condition"] for trace in traces.values()} == {"max_turns"}


def test_openenvs_own_client_earns_our_reward_in_the_stock_world(exported, tmp_path):
    folder, world = exported("stocks", "openenv")
    tasks = world.tasks("rl")[:40]
    policy = expert_policy(world.domain, is_flawless=False, reasoning_frac=0.0)
    played = run_episodes(policy, tasks, domain=world.domain, limits=world.limits, seeds=[1] * len(tasks))
    messages = [[one.to_openai() for one in play.messages if one.role == "assistant"] for play in played]
    (tmp_path / "messages.json").write_text(json.dumps(messages))
    program = textwrap.dedent(
        """
        import json, sys
        from openenv import GenericEnvClient

        rewards = []
        with GenericEnvClient(base_url=sys.argv[1]).sync() as env:
            for index, messages in enumerate(json.load(open(sys.argv[2]))):
                env.reset(split="rl", index=index)
                for message in messages:
                    calls = message.get("tool_calls") or []
                    if len(calls) == 1 and calls[0]["function"]["arguments"].endswith("}"):
                        made = calls[0]["function"]
                        action = {"tool_name": made["name"], "arguments": json.loads(made["arguments"])}
                    elif not calls:
                        action = {"tool_name": "say", "arguments": {"text": message["content"]}}
                    else:
                        action = {"type": "message", "message": message}
                    seen = env.step({"type": "call_tool", **action})
                assert seen.done, seen
                rewards.append(seen.reward)
        print(json.dumps(rewards))
        """
    )
    with served(folder) as url:
        command = [OPENENV / "python", "-c", program, url, tmp_path / "messages.json"]
        ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        valid = subprocess.run([OPENENV / "openenv", "validate", "--url", url], check=False, timeout=100)
    scored = [world.reward.score(one, task).reward for one, task in zip(played, tasks, strict=True)]
    assert json.loads(ended.stdout) == pytest.approx(scored)
    assert len({*scored}) > 3
    assert valid.returncode == 0


def section_of(environment, counts, **config):
    sft, rl, dev, test = counts
    first = {"sft": 0, "rl": sft, "dev": sft + rl, "test": sft + rl + dev}
    sizes = {"num_sft_tasks": sft, "num_rl_tasks": rl, "num_dev_tasks": dev, "num_test_tasks": test}
    return {
        "seed": 7,
        **sizes,
        "environment": environment,
        "config": config,
        "first_index": first,
        "success_reward": 1.0,
    }


def test_a_world_exported_to_verifiers_and_taken_back_earns_what_it_earned(exported, monkeypatch):
    folder, world = exported("calculator", "verifiers")
    tasks = world.tasks("rl")[:40]
    monkeypatch.setenv(PYTHON, str(VERIFIERS / "python"))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    by_question = {task.messages[-1].content: task for task in tasks}

    def expert(task, seed):
        own = by_question[task.messages[-1].content]
        return world.domain.expert(own, seed=seed, is_flawless=False, reasoning_frac=0.0)

    with served(folder) as url:
        section = section_of("posttrain_calculator", (1, 37, 1, 1), taskset={"url": url})
        domain = make_domain(world_params({"type": "verifiers", **section}))
        theirs = domain.tasks("rl", 37)
        played = run_episodes(ScriptedPolicy(expert), theirs, domain=domain, limits=world.limits, seeds=[1] * 37)
    ours = rewards_of_ours(world, tasks, False)
    assert [one.outcome.reward for one in played] == [ours[task.task_id] for task in tasks[1:38]]
    assert 0 < sum(one.is_success for one in played) < 37


def test_an_environment_of_verifiers_is_evaluated_here_without_training(tmp_path, monkeypatch):
    (tmp_path / "reversed_words.py").write_text(REVERSED)
    monkeypatch.setenv(PYTHON, str(VERIFIERS / "python"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    first = {"test": 0, "sft": 3, "dev": 4, "rl": 5}  # there are six tasks, and those of rl are not asked for
    knobs = section_of("reversed_words", (1, 64, 1, 3), agent=agent) | {"first_index": first}
    endpoint = Endpoint(
        lambda _, body: answer_of(
            "no" if "river" in str(body["messages"]) else body["messages"][-1]["content"].split()[-1][::-1]
        )
    )
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    settings = [word for key, value in knobs.items() for word in ("--set", f"world.{key}={json.dumps(value)}")]
    ended = posttrain("evaluate", "m", "--endpoint", "--world", "verifiers", "--num-samples", "0", "--json", *settings)
    endpoint.stop()
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout)["success_rate"] == pytest.approx(2 / 3)


def test_a_python_without_verifiers_and_an_environment_that_is_not_there_are_refused(monkeypatch):
    section = world_params({"type": "verifiers", **section_of("no_such_taskset", (1, 1, 1, 1))})
    for python, why in (
        ("", "starts no Python"),
        (sys.executable, "verifiers"),
        (VERIFIERS / "python", "no_such_taskset"),
    ):
        monkeypatch.setenv(PYTHON, str(python))
        with pytest.raises(ConfigurationError, match=why):
            make_domain(section)
