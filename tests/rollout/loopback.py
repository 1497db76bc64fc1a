"""A web server on the loopback interface, in a thread of its own: what the servers that tests play
against have in common."""

import asyncio
import threading

from aiohttp import web


class LoopbackServer:
    """Serves as soon as it is made, at `url`; port 0 takes any. A handler that is to be silent
    awaits `end`, which `stop()` sets."""

    def __init__(self, routes, port=0):
        self.end = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(routes, port), self._loop).result()

    async def _start(self, routes, port):
        app = web.Application()
        app.add_routes(routes)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    def stop(self):
        self._loop.call_soon_threadsafe(self.end.set)
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
