"""Servers that misbehave: a sentence each, and no crash. `python -m benchmarks.hostile_servers` has
all of them, with time and memory."""

import asyncio
import re

import pytest

from posttrain.runtime.exits import ConfigurationError
from posttrain.worlds.http_env.domain import HttpEnvDomain
from posttrain.worlds.mcp import McpServer
from posttrain.worlds.protocol import WorldFailed
from tests.worlds.hostile_env import HostileEnv
from tests.worlds.hostile_plays import WANTED, sentence_of
from tests.worlds.test_http_env import params_of

SLOW = {  # seconds of memory and time, or waiting for its own sake
    *("mcp.silent", "mcp.drips", "mcp.endless_line", "mcp.floods_stderr", "mcp.babbles", "mcp.many_tools"),
    *("mcp.silent_in_call", "mcp.drips_in_call", "mcp.result_of_100_mib", "mcp.small_objects", "mcp.refuses_to_die"),
    *("mcp.floods_notifications", "mcp.floods_requests", "mcp.list_of_30_mib", "mcp.endless_pages", "mcp.long_error"),
    *("env.body_of_100_mib", "env.error_of_100_mib", "env.gzip_bomb", "env.gzip_bomb_unsaid", "env.small_objects"),
    *("env.drips", "env.silent", "env.endless_continue"),
}


@pytest.fixture(autouse=True)
def ends_soon(monkeypatch):
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.1)


@pytest.mark.parametrize("name", sorted(set(WANTED) - SLOW))
def test_a_server_that_misbehaves_is_told_in_a_sentence(name):
    assert WANTED[name] in sentence_of(name)


@pytest.mark.parametrize("name", ["mcp.silent", "mcp.endless_line", "mcp.floods_stderr"])
def test_a_server_that_lists_nothing_is_given_up_after_its_time(name):
    assert "not within start_timeout_s = 0.5" in sentence_of(name, start_timeout_s=0.5)


@pytest.mark.parametrize("name", ["mcp.silent_in_call", "mcp.drips_in_call", "env.silent", "env.drips"])
def test_a_server_that_answers_too_late_is_not_waited_for(name):
    assert re.search(r"within 0\.2 s", sentence_of(name, timeout_s=0.2))


def test_a_server_that_says_much_and_answers_nothing_is_listened_to_no_more(monkeypatch):
    monkeypatch.setattr("posttrain.worlds.mcp_stdio._MAX_UNSOLICITED", 50)
    for kind in ("babbles", "floods_notifications", "floods_requests"):
        assert "51 messages and no answer" in sentence_of(f"mcp.{kind}", timeout_s=10.0)


def test_no_answer_of_a_server_is_read_beyond_its_limit(monkeypatch):
    monkeypatch.setattr("posttrain.worlds.mcp_stdio.MAX_ANSWER_BYTES", 2**20)
    monkeypatch.setattr("posttrain.worlds.mcp._MAX_LISTED_BYTES", 2**20)
    monkeypatch.setattr("posttrain.runtime.http_bodies.MAX_ANSWER_BYTES", 2**20)
    for name in ("mcp.list_of_30_mib", "mcp.result_of_100_mib", "env.endless_chunks", "env.body_of_100_mib"):
        assert "the answer has more than 1 MiB" in sentence_of(name)


def test_an_mcp_server_behind_a_url_that_leads_elsewhere_is_not_followed():
    with (
        HostileEnv("redirects") as url,
        pytest.raises(ConfigurationError, match=r"redirects to http://127.0.0.2:9/x, where nothing is sent"),
    ):
        McpServer(url=f"{url}/step").tools()


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

    with HostileEnv("cookies", ids=[7, 7, 7]) as url:
        asyncio.run(resets(HttpEnvDomain(params_of(url))))
