"""A server that speaks what `vllm_server.py` asks of vLLM, with the torch engine behind it, and
that can be made to misbehave."""

import asyncio
import copy
from collections.abc import Iterable
from pathlib import Path

import torch
from aiohttp import web
from peft import PeftModel
from safetensors.torch import load_file

from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.rollout.engines.vllm_server import BASE
from posttrain.rollout.engines.weight_stream import RECEIVE, WeightReceiver
from tests.rollout.loopback import LoopbackServer
from tests.rollout.tiny_models import tiny_model


class _Receiving(WeightReceiver):
    """As vLLM's worker."""

    def __init__(self, server: "TokenServer") -> None:
        self.device = torch.device("cpu")
        self.model_runner = self
        self._server = server

    def reload_weights(self, weights_iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._server.load(weights_iterator)


class TokenServer(LoopbackServer):
    """`mood`: `well`, `hangs`, `garbage`, `forgets` (says it loaded and did not), `refuses`,
    `is lost` while weights are sent."""

    def __init__(self, port: int = 0) -> None:
        self.mood, self.is_asleep = "well", False
        self.num_messages = self.num_loads = 0
        self.episodes_seen: list[tuple[int, ...]] = []
        self.adapters: dict[str, TorchEngine] = {}
        self._model = tiny_model("qwen3", seed=99)
        self._version = "at the start"
        self._engine = _engine(self._model)
        routes = [
            web.get("/health", self._nothing),
            web.get("/weight_info", self._weight_info),
            web.post("/pause", self._nothing),
            web.post("/resume", self._nothing),
            web.post("/sleep", self._sleep),
            web.post("/wake_up", self._wake_up),
            web.post("/collective_rpc", self._load),
            web.post("/update_weight_version", self._rename),
            web.get("/v1/models", self._models),
            web.post("/v1/load_lora_adapter", self._load_adapter),
            web.post("/v1/unload_lora_adapter", self._unload_adapter),
            web.post("/inference/v1/generate", self._generate),
        ]
        super().__init__(routes, port)

    async def _nothing(self, _: web.Request) -> web.Response:
        await self._hang()
        return web.Response()

    async def _sleep(self, request: web.Request) -> web.Response:
        self.is_asleep = True
        return web.Response()

    async def _wake_up(self, _: web.Request) -> web.Response:
        self.is_asleep = False
        return web.Response()

    async def _hang(self) -> None:
        if self.mood == "hangs":
            await self.end.wait()

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self._version})

    async def _rename(self, request: web.Request) -> web.Response:
        self._version = (await request.json())["new_version"]
        return web.Response()

    async def _load(self, request: web.Request) -> web.Response:
        self.num_loads += 1
        call = await request.json()
        if call["method"] == RECEIVE:
            await asyncio.to_thread(_Receiving(self).receive_weights, *call["args"])
        elif self.mood != "forgets":
            self.load(load_file(Path(call["kwargs"]["weights_path"]) / "model.safetensors").items())
        return web.Response()

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        received = {}
        for name, weight in weights:
            if self.mood == "is lost":
                raise RuntimeError("in the middle of the weights")
            received[name] = weight
        self._model.load_state_dict(received)
        self._engine.refresh_weights()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in (BASE, *self.adapters)]})

    async def _load_adapter(self, request: web.Request) -> web.Response:
        self.num_loads += 1
        body = await request.json()
        if body["lora_name"] in self.adapters:
            return web.json_response({"error": "has already been loaded"}, status=400)
        self.adapters[body["lora_name"]] = _engine(
            PeftModel.from_pretrained(copy.deepcopy(self._model), body["lora_path"])
        )
        return web.Response()

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        del self.adapters[(await request.json())["lora_name"]]
        return web.Response()

    async def _generate(self, request: web.Request) -> web.Response:
        await self._hang()
        if self.is_asleep:
            return web.json_response({"error": "asleep"}, status=500)
        if self.mood == "garbage":
            return web.json_response({"choices": [{"token_ids": [1, 2], "finish_reason": "stop"}]})
        if self.mood == "refuses":
            return web.json_response({"error": "token 64 is out of the vocabulary"}, status=400)
        body = await request.json()
        engine = self._engine if body["model"] == BASE else self.adapters.get(body["model"])
        if engine is None:
            return web.json_response({"error": f"The model {body['model']} does not exist."}, status=404)
        sampling = body["sampling_params"]
        self.num_messages += 1
        self.episodes_seen.append(tuple(body["token_ids"][:2]))
        name = str(self.num_messages)
        limits = (
            sampling["max_tokens"],
            sampling["temperature"],
            sampling["seed"],
            frozenset(sampling["stop_token_ids"]),
        )
        try:
            generation = await engine.generate(GenerateRequest(name, body["token_ids"], *limits))
        finally:
            engine.release(name)
        content = [
            {"token_id": token, "logprob": logprob}
            for token, logprob in zip(generation.token_ids, generation.logprobs, strict=True)
        ]
        choice = {
            "token_ids": list(generation.token_ids),
            "logprobs": {"content": content},
            "finish_reason": generation.finish,
            "weight_versions": [{"version": self._version, "start": 0, "end": len(content)}],
        }
        return web.json_response({"choices": [choice]})


def _engine(model: object) -> TorchEngine:
    return TorchEngine(model, num_slots=8, max_context_tokens=256)
