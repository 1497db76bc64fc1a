"""Tools of a real MCP server, started over stdio by each episode or running behind a URL."""

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.types import Outcome, StopReason, ToolRun
from posttrain.worlds.mcp import McpConnection, McpServer
from posttrain.worlds.tools import ToolError
from tests.limits import limits_of
from tests.rollout.lock_world import ScriptedExpert, call, lock_task, say

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
SERVER = McpServer(command=(sys.executable, PROGRAM))
TOOLS = ("add", "name", "digits", "say", "die", "hang")


@pytest.fixture(scope="module")
def described():
    return SERVER.tools()


class CounterWorld:
    """An episode with a counter of its own."""

    def __init__(self, connection, tools):
        self._connection, self._tools = connection, tools

    def tools(self):
        return self._tools

    def user_reply(self, message):
        return None

    def grade(self, trajectory):
        return Outcome(True, True)

    async def close(self):
        await self._connection.close()


class CounterDomain:
    name = "counter"
    scores = ()

    def __init__(self, tools, server=SERVER):
        self.tools, self._server = tools, server
        self.connections = []

    def open(self, task):
        connection = McpConnection(self._server)
        self.connections.append(connection)
        return CounterWorld(connection, connection.tools(self.tools, task.tools))


def play(domain, *scripts, **limits):
    experts = dict(enumerate(scripts))
    policy = ScriptedPolicy(lambda task, seed: ScriptedExpert(list(experts[seed])))
    wide = limits_of(6, 8, 40, **{"max_aborted_frac": 0.99} | limits)
    tasks = [lock_task(f"task {seed}", tools=TOOLS) for seed in experts]
    return run_episodes(policy, tasks, domain=domain, limits=wide, seeds=list(experts))


def results(trajectory):
    return [message.content for message in trajectory.messages if message.role == "tool"]


def test_the_servers_schemas_are_the_tools_without_titles(described):
    assert tuple(described) == TOOLS
    assert described["add"].schema()["function"] == {
        "name": "add",
        "description": "Add to the counter.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer"}, "times": {"type": "integer", "default": 1}},
            "required": ["number"],
        },
    }
    assert "title" in described["name"].parameters["properties"], "an argument of that name is no title"


def test_each_episode_has_a_server_of_its_own_which_goes_with_it(described):
    domain = CounterDomain(described)
    twice = [call("add", '{"number":40,"times":"2"}'), call("add", '{"number":3}'), call("digits", "{}"), say("done")]
    other = [
        call("add", '{"number":5}'),
        call("name", '{"title":"five","tags":["a","b"]}'),
        call("name", '{"title":"six","tags":null}'),
        say("done"),
    ]
    silent = [say("done")]
    first, second, third = play(domain, twice, other, silent)
    assert results(first) == ['{"count":80}', '{"count":83}', "[8,3]"]
    assert results(second) == ['{"count":5}', '"five (a, b)"', '"six (no tags)"']
    assert {one.stop_reason for one in (first, second, third)} == {StopReason.DONE}
    tasks = [connection._task for connection in domain.connections]
    assert [task is not None and task.done() for task in tasks] == [True, True, False]


def test_a_mistake_is_read_by_the_agent_whoever_finds_it(described):
    [played] = play(
        CounterDomain(described),
        [
            call("add", '{"number":-1}'),
            call("add", '{"number":"x"}'),
            call("add", "{}"),
            call("name", '{"title":"x","tags":[1]}'),
            say("done"),
        ],
    )
    refused, wrong_type, missing, refused_by_server = results(played)
    assert refused == '{"error":"Error executing tool add: the counter only goes up"}'
    assert wrong_type == '{"error":"argument \'number\' is \\"x\\"; it must be of type integer"}'
    assert missing == '{"error":"missing argument \'number\'"}'
    assert "validation error" in refused_by_server, "a union is left to the server to judge"
    assert [run.outcome for turn in played.turns for run in turn.tool_runs] == ["error"] * 4


SAYINGS = [
    call("say", '{"num_chars":300000,"is_refused":false}'),
    call("say", '{"num_chars":300000,"is_refused":true}'),
    call("add", '{"number":1}'),
    say("done"),
]


def are_cut(contents):
    result, error, after = contents
    assert result == '"' + "x" * 49 + "… [299952 of 300002 characters cut]"
    assert error == '{"error":"' + "x" * 40 + "… [299962 of 300012 characters cut]"
    assert after.startswith('{"count":'), "the server goes on"


def test_results_and_errors_of_a_server_are_cut(described):
    [played] = play(CounterDomain(described), SAYINGS, max_result_chars=50)
    are_cut(results(played))


def test_a_server_that_dies_loses_the_episode_and_no_other(described):
    domain = CounterDomain(described)
    lost, played = play(
        domain,
        [call("add", '{"number":1}'), call("die", "{}")] * 2,
        [call("add", '{"number":2}'), say("done")],
        tool_retries=1,
    )
    assert (lost.stop_reason, played.stop_reason) == (StopReason.TOOL_FAILED, StopReason.DONE)
    assert lost.failure.startswith("die({}) raised ConnectionError: the MCP server failed: MCPError: Connection closed")
    assert len(domain.connections) == 3, "the lost one was played again, on a fresh server"
    assert results(lost)[0] == '{"count":1}'


def test_a_server_that_hangs_is_given_up_after_its_time(described):
    [played] = play(
        CounterDomain(described), [call("add", '{"number":1}'), call("hang", "{}"), say("done")], tool_timeout_s=3.0
    )
    assert results(played)[1] == '{"error":"hang did not answer within 3 s"}'
    assert played.turns[1].tool_runs == (ToolRun("call_2", "hang", "timeout"),)
    assert played.stop_reason == StopReason.DONE


def test_a_server_that_cannot_be_started_is_said_with_its_own_last_words(described):
    broken = McpServer(command=(sys.executable, "-c", "import nothing_of_that_name"))
    with pytest.raises(Interrupted, match=r"tool_failed: .*it said: .*(\n.*)*No module named 'nothing_of_that_name'"):
        play(CounterDomain(described, broken), [call("add", '{"number":1}')] * 2)
    with pytest.raises(
        ConfigurationError, match=r"does not list its tools .*(\n.*)*No module named 'nothing_of_that_name'"
    ):
        broken.tools()
    with pytest.raises(ConfigurationError, match="FileNotFoundError"):
        McpServer(command=("no-such-command",)).tools()
    with pytest.raises(ConfigurationError, match="one of the two"):
        McpServer()


def test_a_server_behind_a_url_is_the_same():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, PROGRAM, str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline_s, "the server does not listen"
                time.sleep(0.05)
        server = McpServer(url=f"http://127.0.0.1:{port}/mcp")
        [played] = play(
            CounterDomain(server.tools(), server),
            [call("add", '{"number":7}'), call("add", '{"number":-1}'), say("done")],
        )
        assert results(played) == ['{"count":7}', '{"error":"Error executing tool add: the counter only goes up"}']
        [played] = play(CounterDomain(server.tools(), server), SAYINGS, max_result_chars=50)
        are_cut(results(played))
    finally:
        process.terminate()
        process.wait()


def test_a_tool_that_only_describes_is_not_called():
    async def call_it():
        connection = McpConnection(SERVER)
        with pytest.raises(ToolError, match="Unknown tool"):
            await connection.call("nothing", {})
        await connection.close()

    asyncio.run(call_it())
    with pytest.raises(RuntimeError, match="belongs to no episode"):
        asyncio.run(SERVER.tools()["add"].function(number=1))
