"""Measures playing on from recorded episodes: `python -m benchmarks.play_on`.

Of episodes that the model has played greedily: whether each is the same again from every turn, with
0 tokens generated before it; and tokens a second of 1,000 branches off 50 prefixes, beside those of
whole episodes with as many new tokens. With `--kinds built_in openai langgraph mcp vllm` the same
for episodes of each kind, recorded anew, and whether a world that answers otherwise is told. `vllm`
starts the server of `infra/vllm`.
"""

import argparse
import json
import os
import resource
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from mcp.server.mcpserver import MCPServer

from benchmarks.vllm_process import VllmProcess
from posttrain.cli.traces import recorded_settings
from posttrain.debug.player import Player, model_player
from posttrain.models.loading import load_model
from posttrain.rollout.agents.langgraph import langgraph_loop
from posttrain.rollout.agents.openai_proxy import AgentTask, openai_loop
from posttrain.rollout.engines.weight_files import write_served_folder
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.params import AgentParams
from posttrain.rollout.play_on import Fork
from posttrain.rollout.policy import Policy
from posttrain.traces.query import EpisodeFilter, matching
from posttrain.traces.reading import read_episodes
from posttrain.traces.store import open_to_read
from posttrain.types import Task, Trajectory
from posttrain.worlds.catalog import make_domain
from posttrain.worlds.mcp import McpConnection, McpServer
from posttrain.worlds.protocol import Domain, World
from posttrain.worlds.tools import Tool


class Counting:
    """A policy that counts the tokens that another one writes, into `num_written`."""

    num_written = 0

    def __init__(self, policy: Policy) -> None:
        self._policy, self.release = policy, policy.release

    async def reply(self, episode: Episode) -> Reply:
        reply = await self._policy.reply(episode)
        Counting.num_written += len(reply.token_ids)
        return reply


def same_again(player: Player, episodes: Sequence[Trajectory], tasks: Sequence[Task]) -> dict[str, Any]:
    """Every episode from every one of its turns, greedily. `generated` are tokens that the engine
    wrote, `dropped` those of the turns that are not given back: equal where no turn before the fork
    was written again. `same_prefix` counts forks whose tokens up to the turn are the recorded."""
    found = Counter[str](episodes=len(episodes))
    for at in range(1, max(len(one.turns) for one in episodes) + 1):
        forks = [Fork(task, one, at) for task, one in zip(tasks, episodes, strict=True) if len(one.turns) >= at]
        before = Counting.num_written
        branches = player.branches(forks, temperature=0.0, allow_differences=True)
        found["generated"] += Counting.num_written - before
        for branch in branches:
            old, new = branch.fork.trajectory, branch.trajectory
            num_given = sum(turn.num_read + turn.num_written for turn in old.turns[: at - 1])
            found["forks"] += 1
            found["dropped"] += sum(turn.num_written for turn in old.turns[at - 1 :])
            found["differences"] += len(branch.differences)
            found["same_prefix"] += new.token_ids[:num_given] == old.token_ids[:num_given]
            found["same"] += (new.token_ids, new.messages) == (old.token_ids, old.messages)
    return dict(found)


def told(player: Player, episodes: Sequence[Trajectory], tasks: Sequence[Task]) -> dict[str, int]:
    """Every episode whose first turn has a result, in a world whose tools answer otherwise: how
    many are told of a difference before turn 2, where the first answer is read."""
    is_calling = [
        bool(one.turns[1:]) and any(run.outcome == "ok" for run in one.turns[0].tool_runs) for one in episodes
    ]
    forks = [Fork(task, one, 2) for task, one, is_one in zip(tasks, episodes, is_calling, strict=True) if is_one]
    changed = replace(player, domain=Changed(player.domain))
    branches = changed.branches(forks, temperature=0.0, allow_differences=True)
    found = [any(text.startswith("before turn 2: tool") for text in one.differences) for one in branches]
    return {"changed": len(found), "told": sum(found)}


class Changed:
    """A domain whose tools answer something else."""

    def __init__(self, domain: Domain) -> None:
        self.name, self.tools, self.tasks, self._domain = domain.name, domain.tools, domain.tasks, domain

    def open(self, task: Task) -> World:
        world = self._domain.open(task)
        tools = {name: replace(tool, function=lambda **_: {"changed": True}) for name, tool in world.tools().items()}
        world.tools = lambda: tools  # type: ignore[method-assign]
        return world


async def ask_and_call(task: AgentTask) -> None:
    """A program with the `openai` client: ask, run the calls, ask again."""
    messages: list[Any] = list(task.messages)
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        while True:
            answer = await client.chat.completions.create(model=task.model, messages=messages, tools=task.tools)
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                content = await task.acall_tool(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def react(model: Any, tools: Sequence[Any]) -> Any:
    """LangGraph's prebuilt agent, written out."""
    bound = model.bind_tools(tools)

    async def ask(state: MessagesState) -> Any:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("act", ToolNode(tools))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda state: "act" if state["messages"][-1].tool_calls else END)
    graph.add_edge("act", "ask")
    return graph.compile()


program, graph = openai_loop(ask_and_call), langgraph_loop(react)
AGENTS = {"openai": f"{__spec__.name}:program", "langgraph": f"{__spec__.name}:graph"}


class OverMcp:
    """The domain with its tools behind an MCP server, which this process serves at a URL."""

    def __init__(self, domain: Domain) -> None:
        self.name, self.tasks, self._domain = domain.name, domain.tasks, domain
        server = MCPServer("tools", log_level="ERROR")
        for name, tool in domain.tools.items():
            server.tool(name=name, structured_output=False)(tool.function)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        threading.Thread(target=lambda: server.run("streamable-http", port=port), daemon=True).start()
        self._server = McpServer(url=f"http://127.0.0.1:{port}/mcp")
        time.sleep(2)
        self.tools: Mapping[str, Tool] = self._server.tools()

    def open(self, task: Task) -> World:
        world, connection = self._domain.open(task), McpConnection(self._server)
        return McpWorld(world, connection, connection.tools(self.tools, task.tools))


class McpWorld:
    """A world whose tools are called over its connection."""

    def __init__(self, world: World, connection: McpConnection, tools: Mapping[str, Tool]) -> None:
        self.user_reply, self.grade, self.close = world.user_reply, world.grade, connection.close
        self._tools = tools

    def tools(self) -> Mapping[str, Tool]:
        return self._tools


def kinds(model: Path, domain: Domain, limits: AgentParams, tasks: Sequence[Task], names: Sequence[str]) -> None:
    """For each kind of episode: recorded greedily, from every turn, and in a changed world."""
    for name in names:
        with ExitStack() as started:
            if name == "vllm":
                _serve(model, started)
            player = counted(model, OverMcp(domain) if name == "mcp" else domain, limits)
            own = [replace(task, agent_name=AGENTS.get(name, task.agent_name)) for task in tasks]
            recorded = run_episodes(
                player.policy_at(0.0), own, domain=player.domain, limits=limits, seeds=range(len(own))
            )
            found = {"kind": name, **same_again(player, recorded, own), **told(player, recorded, own)}
            print(json.dumps(found), flush=True)


def counted(model: Path, domain: Domain, limits: AgentParams) -> Player:
    loaded = model_player(model, domain, limits)
    return replace(loaded, policy_at=lambda temperature: Counting(loaded.policy_at(temperature)))


def _serve(model: Path, started: ExitStack) -> None:
    """A vLLM server of the model, which the next engine plays by."""
    folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
    write_served_folder(model, load_model(model), folder / "model")
    server = started.enter_context(closing(VllmProcess(folder / "model", 8621, folder)))
    server.wait()
    os.environ |= {
        "POSTTRAIN_ENGINE": "vllm",
        "POSTTRAIN_VLLM_URLS": server.url,
        "POSTTRAIN_VLLM_FOLDER": str(folder / "weights"),
    }
    started.callback(os.environ.pop, "POSTTRAIN_ENGINE")


def branching(player: Player, episodes: Sequence[Trajectory], tasks: Sequence[Any], *, num: int) -> dict[str, float]:
    """Tokens a second of `num` branches at turn 2 of each episode, and of whole sampled episodes
    with as many new tokens; peak memory of the process in MiB."""
    forks = [Fork(task, one, 2, num=num, seed=1) for task, one in zip(tasks, episodes, strict=True)]
    rates = {}
    for name in ("branches", "fresh"):
        before, start = Counting.num_written, time.perf_counter()
        if name == "branches":
            branches = player.branches(forks)
            wanted = Counting.num_written - before
        else:
            plays = [fork.task for fork in forks for _ in range(num)]
            while Counting.num_written - before < wanted:
                run_episodes(
                    player.policy_at(1.0), plays, domain=player.domain, limits=player.limits, seeds=range(len(plays))
                )
        rates[name] = (Counting.num_written - before) / (time.perf_counter() - start)
    return {
        "num_branches": len(branches),
        "new_tokens": wanted,
        "branches_per_s": rates["branches"],
        "fresh_per_s": rates["fresh"],
        "ratio": rates["branches"] / rates["fresh"],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.play_on", description=__doc__)
    parser.add_argument("--store", type=Path, default=Path(".posttrain/traces.db"))
    parser.add_argument("--model", type=Path, default=Path("data/models/sft"))
    parser.add_argument("--stage", default="evaluate@sft")
    parser.add_argument("--kinds", nargs="*", default=[], help="record anew: built_in, openai, langgraph, mcp, vllm")
    parser.add_argument("--num", type=int, default=200, help="episodes that are played on from every turn")
    given = parser.parse_args()
    with closing(open_to_read(given.store)) as connection:
        found = matching(connection, EpisodeFilter(stage=given.stage, part="greedy"), limit=given.num)
        episodes = list(read_episodes(connection, found))
    world, agent = recorded_settings(episodes[0].run, None)
    if given.kinds:
        domain = make_domain(world)
        kinds(given.model, domain, agent, domain.tasks("test", given.num), given.kinds)
        return
    player = counted(given.model, make_domain(world), agent)
    trajectories, tasks = [one.traced.trajectory for one in episodes], [one.traced.task for one in episodes]
    print(json.dumps(same_again(player, trajectories, tasks), indent=1))
    longer = [index for index, one in enumerate(trajectories) if len(one.turns) >= 3][:50]
    print(
        json.dumps(branching(player, [trajectories[i] for i in longer], [tasks[i] for i in longer], num=20), indent=1)
    )


if __name__ == "__main__":
    main()
