"""Runs verifiers' environments for a process that cannot import them: a JSON object a line, in and
out. A script of its own, run by a Python that has verifiers and need not have posttrain.

`{"id": 0, "load": N}` answers the first N tasks; `{"id": 1, "run": 5, "base_url": …, "api_key": …,
"max_turns": …}` plays task 5 with the model behind that endpoint, and answers its reward.
"""

import asyncio
import itertools
import json
import os
import sys
from typing import Any, TextIO


async def main(environment: str, config: dict[str, Any], out: TextIO) -> None:
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    # the package starts `uv` by its name
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    taskset = {**config.get("taskset", {}), "id": environment}
    settings = resolve_env_config({**config, "taskset": taskset})
    env = load_environment(settings)
    lines, running = asyncio.StreamReader(limit=2**24), set[Any]()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    async def answer(asked: dict[str, Any]) -> None:
        try:
            result = listed(env, asked["load"]) if "load" in asked else await played(env, settings, asked)
            said = {"id": asked["id"], "result": result}
        except Exception as error:  # of somebody's environment: told, and the others go on
            said = {"id": asked["id"], "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=out, flush=True)

    async with env.serving():
        while line := await lines.readline():
            running.add(task := asyncio.create_task(answer(json.loads(line))))
            task.add_done_callback(running.discard)


def listed(env: Any, count: int) -> list[dict[str, Any]]:
    """The conversation that each task opens with, in OpenAI's format."""
    opened = []
    for task in itertools.islice(env.taskset, count):
        system, prompt = task.data.system_prompt, task.data.prompt
        asked = [{"role": "user", "content": prompt or ""}]
        if not isinstance(prompt, str | None):
            asked = [{"role": one.role, "content": str(one.content)} for one in prompt]
        opened.append({"messages": [*([{"role": "system", "content": system}] if system else []), *asked]})
    return opened


async def played(env: Any, settings: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The reward of all the traces that may be trained on, None where verifiers gave none."""
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import agent_config_fields

    for agent in agent_config_fields(settings).values():
        agent.max_turns = asked["max_turns"]
    key = f"POSTTRAIN_KEY_{asked['id']}"  # a key comes from the environment alone
    os.environ[key] = asked["api_key"]
    try:
        client = vf.EvalClientConfig(base_url=asked["base_url"], api_key_var=key)
        task = next(itertools.islice(env.taskset, asked["run"], None))
        episode = await env.run_episode(task, vf.ModelContext("policy", client))
    finally:
        del os.environ[key]
    errors = [error.message for one in (episode, *episode.traces) for error in one.errors]
    traces = [trace for trace in episode.traces if trace.ok]
    reward = sum(trace.reward for trace in traces) if traces and episode.ok else None
    return {"reward": reward, "errors": errors}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an environment prints is no answer
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), answers))
