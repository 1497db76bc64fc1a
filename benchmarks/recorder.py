"""Measures what `posttrain record` adds to a request, against asking the endpoint itself:
`python -m benchmarks.recorder`.

The endpoint is a stub on loopback that answers at once, whole or as a stream of 41 pieces. Both
ways are asked in turn: one request at a time, 50 that begin within half a second, and 50 in one
moment. What is added is the difference of a quantile.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from posttrain.runtime.loopback import LOOPBACK

DELTA = b'data: {"choices": [{"index": 0, "delta": {"content": "token "}, "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
TURNS = [{"role": "user", "content": f"turn {at}: " + "some words of a conversation " * 20} for at in range(10)]


async def answer(request: web.Request) -> web.StreamResponse:
    if not (await request.json())["stream"]:
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": "token " * 40}}]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(40):
        await response.write(DELTA)
    await response.write(END)
    return response


async def ask(client: aiohttp.ClientSession, url: str, number: int, *, is_stream: bool, within_s: float) -> float:
    """Milliseconds until the answer is whole; it begins at its own time within `within_s`."""
    messages = [{"role": "system", "content": f"conversation {number}"}, *TURNS]
    await asyncio.sleep(number * 0.37 % 1 * within_s)
    start = time.perf_counter()
    body = {"model": "m", "messages": messages, "stream": is_stream}
    async with client.post(f"{url}/chat/completions", json=body) as response:
        await response.read()
    return 1e3 * (time.perf_counter() - start)


async def measure(urls: dict[str, str], num: int, at_once: int, **asked: Any) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in urls}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        for start in range(0, num, at_once):
            for name, url in urls.items():
                took[name] += await asyncio.gather(*(ask(client, url, start + at, **asked) for at in range(at_once)))
    kept = {name: np.percentile(times[2 * at_once :], (50, 95)) for name, times in took.items()}  # warm
    p50, p95 = kept["recorded"] - kept["direct"]
    return {"direct_p50": kept["direct"][0], "direct_p95": kept["direct"][1], "added_p50": p50, "added_p95": p95}


async def main(num: int) -> None:
    runner = web.AppRunner(app := web.Application(), access_log=None)
    app.router.add_post("/v1/chat/completions", answer)
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, 0).start()
    upstream = f"http://{LOOPBACK}:{runner.addresses[0][1]}/v1"
    with tempfile.TemporaryDirectory() as folder:
        command = ["posttrain", "record", "--upstream", upstream, "--port", "0"]
        environment = {**os.environ, "POSTTRAIN_TRACES": str(Path(folder) / "traces.db")}
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
        assert process.stdout
        urls = {"direct": upstream, "recorded": (await process.stdout.readline()).decode().split("=")[1].split()[0]}
        print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; bodies of 6 KB; milliseconds")
        for at_once, within_s in ((1, 0.0), (50, 0.5), (50, 0.0)):
            for is_stream in (False, True):
                asked = {"is_stream": is_stream, "within_s": within_s}
                found = await measure(urls, num, at_once, **asked)
                rounded = {name: round(float(value), 2) for name, value in found.items()}
                print(json.dumps({"at_once": at_once, **asked, **rounded}))
        process.terminate()
        await process.wait()
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser("benchmarks.recorder", description=__doc__)
    parser.add_argument("--num", type=int, default=1000, help="requests of each kind, either way")
    asyncio.run(main(parser.parse_args().num))
