"""An OpenAI-compatible endpoint on the loopback interface that answers as a script says."""

import asyncio
import threading

from aiohttp import web


class Endpoint:
    """Answers as `script(number of the request, its body)` says: a message, a status, or None for silence."""

    def __init__(self, script):
        self.bodies, self.keys = [], []
        self.script = script
        self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    async def _start(self):
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", self._answer)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"

    async def _answer(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers["Authorization"])
        answer = self.script(len(self.bodies), body)
        if answer is None:
            await self._end.wait()
        if isinstance(answer, int):
            return web.json_response({"error": {"message": "as the script says", "code": None}}, status=answer, headers={"retry-after-ms": "1"})
        return web.json_response(answer)

    def stop(self):
        self._loop.call_soon_threadsafe(self._end.set)
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def answer_of(content=None, calls=(), finish="stop"):
    tool_calls = [{"id": f"x{index}", "type": "function", "function": {"name": name, "arguments": text}} for index, (name, text) in enumerate(calls)]
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls or None}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    return {"id": "a", "object": "chat.completion", "created": 0, "model": "m", "usage": usage,
            "choices": [{"index": 0, "finish_reason": finish, "message": message}]}  # fmt: skip
