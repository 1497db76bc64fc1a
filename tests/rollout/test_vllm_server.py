"""An answer that cannot be learnt from is the server's failure: another writes the message."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.rollout.engines.vllm_server import ServerFailed, VllmServer
from tests.rollout.loopback import LoopbackServer

REQUEST = GenerateRequest("e", [1, 2], 8, 1.0, 0, frozenset({9}))


@pytest.fixture
def written():
    """Result of `write` for an answer with these log-probabilities and tokens."""
    said = {}
    server = LoopbackServer([web.post("/inference/v1/generate", lambda _: answer(said))])

    async def ask():
        async with aiohttp.ClientSession() as session:
            return await VllmServer(server.url, session, timeout_s=5.0).write(REQUEST, model="base")

    def write(logprobs, token_ids=(3, 9)):
        said.update(logprobs=[{"logprob": one} for one in logprobs], token_ids=list(token_ids))
        return asyncio.run(ask())

    yield write
    server.stop()


async def answer(said):
    choice = {"logprobs": {"content": said["logprobs"]}, "token_ids": said["token_ids"], "finish_reason": "stop"}
    return web.json_response({"choices": [{**choice, "weight_versions": [{"version": "1"}]}]})


def test_log_probabilities_are_finite_and_not_above_zero_but_for_rounding(written):
    assert written([-0.5, 1e-7]) == ([3, 9], [-0.5, 1e-7], "stop", ["1"])
    for bad in (float("nan"), float("-inf"), float("inf"), 0.5, -1e5, 10**400, "-0.5", None):
        with pytest.raises(ServerFailed, match=r"gave no message .*a token's log-probability is"):
            written([-0.5, bad])


def test_a_server_that_leads_elsewhere_is_not_followed():
    other = LoopbackServer([web.post("/inference/v1/generate", lambda _: answer({}))])

    async def away(_):
        return web.Response(status=307, headers={"location": f"{other.url}/inference/v1/generate"})

    server = LoopbackServer([web.post("/inference/v1/generate", away)])

    async def ask():
        async with aiohttp.ClientSession() as session:
            await VllmServer(server.url, session, timeout_s=5.0).write(REQUEST, model="base")

    with pytest.raises(ServerFailed, match=f"failed with 307: it redirects to {other.url}"):
        asyncio.run(ask())
    server.stop()
    other.stop()
