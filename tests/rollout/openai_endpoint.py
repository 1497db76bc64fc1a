"""An OpenAI-compatible endpoint on the loopback interface that answers as a script says."""

from aiohttp import web

from tests.rollout.loopback import LoopbackServer


class Endpoint(LoopbackServer):
    """Answers as `script(number of the request, its body)` says: a message, a status, a whole
    response, or None for silence."""

    def __init__(self, script):
        self.bodies, self.keys = [], []
        self.script = script
        super().__init__([web.post("/v1/chat/completions", self._answer)])
        self.base_url = f"{self.url}/v1"

    async def _answer(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers["Authorization"])
        answer = self.script(len(self.bodies), body)
        if answer is None:
            await self.end.wait()
        if isinstance(answer, web.StreamResponse):
            return answer
        if isinstance(answer, int):
            return web.json_response(
                {"error": {"message": "as the script says", "code": None}},
                status=answer,
                headers={"retry-after-ms": "1"},
            )
        return web.json_response(answer)


def answer_of(content=None, calls=(), finish="stop"):
    tool_calls = [
        {"id": f"x{index}", "type": "function", "function": {"name": name, "arguments": text}}
        for index, (name, text) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": tool_calls or None}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    return {"id": "a", "object": "chat.completion", "created": 0, "model": "m", "usage": usage,
            "choices": [{"index": 0, "finish_reason": finish, "message": message}]}  # fmt: skip
