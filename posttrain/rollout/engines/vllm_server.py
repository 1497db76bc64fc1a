"""HTTP client of one vLLM server: generate by token ids, load weights, and ask which weights it
has.

Written for vLLM 0.32's token endpoint (`--enable-scale-out`) and its development endpoints
(`VLLM_SERVER_DEV_MODE=1`), which answer without a key: only trusted machines may reach it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.http_bodies import IDENTITY, read_body, redirection
from posttrain.runtime.limits import clip, reason
from posttrain.runtime.redaction import redact
from posttrain.types import number

BASE = "base"  # the name of the model that it was started with; `serve.sh` gives it
# Refusals of the request itself. 404 is none: a restarted server does not know the adapter yet.
_REFUSALS = (400, 401, 403, 405, 422)
_HEALTH_S = 5.0
_ROUNDING = 1e-3  # the log-probability of what is certain may come out above 0
_LEAST_LOGPROB = -1e4  # servers write -9999 for what has none; a token that was sampled has one


class ServerFailed(Exception):
    """The server did not answer in time, broke off, or gave a nonsensical answer."""


class VllmServer:
    """Raises ServerFailed, or ConfigurationError where the server refuses the request itself."""

    def __init__(self, url: str, session: aiohttp.ClientSession, *, timeout_s: float) -> None:
        self.url = url
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, 10))

    async def write(self, request: GenerateRequest, *, model: str) -> tuple[list[int], list[float], str, list[str]]:
        """Token ids, their log-probabilities, vLLM's finish reason, and the names of the weights
        that wrote them."""
        # vLLM has no random stream over turns: the seed takes in the position where a turn begins.
        sampling = {
            "temperature": request.temperature,
            "max_tokens": request.max_new_tokens,
            "stop_token_ids": sorted(request.stop_ids),
            "seed": (request.seed * 1_000_003 + len(request.token_ids)) % 2**31,
            # 0: the sampled token's alone, no alternatives.
            "logprobs": 0,
            "detokenize": False,
        }
        body = {"model": model, "token_ids": list(request.token_ids), "sampling_params": sampling}
        answer = await self._post("/inference/v1/generate", body)
        try:
            choice = answer["choices"][0]
            # a ratio of probabilities is e to the power of them, and NaN would be learnt from
            logprobs = [
                number(token["logprob"], "a token's log-probability", low=_LEAST_LOGPROB, high=_ROUNDING)
                for token in choice["logprobs"]["content"]
            ]
            token_ids = [int(token) for token in choice["token_ids"]]
            versions = [str(span["version"]) for span in choice["weight_versions"]]
            finish = str(choice["finish_reason"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ServerFailed(
                f"{redact(self.url)} gave no message ({type(error).__name__} {reason(error)}): {clip(str(answer), 200)}"
            ) from None
        if not token_ids or len(token_ids) != len(logprobs) or finish not in ("stop", "length"):
            raise ServerFailed(f"{redact(self.url)} gave no message: {clip(str(answer), 200)}")
        return token_ids, logprobs, finish, versions

    async def check_health(self) -> None:
        """Raises ServerFailed unless the server answers within seconds."""
        await self._request("GET", "/health", timeout=aiohttp.ClientTimeout(total=_HEALTH_S))

    async def weights(self) -> str:
        """The name of the weights that the server has."""
        return str((await self._request("GET", "/weight_info")).get("weight_version"))

    async def sleep(self) -> None:
        """Free the GPU: weights go to the host's memory, the cache is dropped."""
        await self._post("/sleep?level=1")

    async def wake_up(self) -> None:
        await self._post("/wake_up")

    async def load_weights(self, source: Path | Mapping[str, Any], *, version: str, is_adapter: bool) -> None:
        """Load weights for every message that begins after this: from a folder, or by a call of its
        workers (`weight_stream`)."""
        # `wait`: messages in flight are finished by the weights that began them.
        await self._post("/pause?mode=wait")
        if not isinstance(source, Path):
            await self._post("/collective_rpc", source)
        elif is_adapter:
            await self._load_adapter(source, version)
        else:
            await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(source)}})
        await self._post("/update_weight_version", {"new_version": version})
        await self._post("/resume")

    async def _load_adapter(self, folder: Path, version: str) -> None:
        """Load a LoRA adapter named by its version, and unload all others. Not `load_inplace` under
        one name: vLLM 0.32 would read the file again at every token."""
        loaded = {model["id"] for model in (await self._request("GET", "/v1/models")).get("data", [])} - {BASE}
        if version not in loaded:
            try:
                await self._post("/v1/load_lora_adapter", {"lora_name": version, "lora_path": str(folder)})
            except ServerFailed as error:
                if "add_lora" not in str(error):
                    raise
                raise ConfigurationError(
                    f"{error}; start it with LORA_RANK set to the adapter's r or more (infra/vllm/serve.sh)"
                ) from error
        for old in loaded - {version}:
            await self._post("/v1/unload_lora_adapter", {"lora_name": old})

    async def _post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._request("POST", path, body)

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> dict[str, Any]:
        where = redact(self.url + path)
        patience = timeout or self._timeout
        try:
            async with self._session.request(
                method, self.url + path, json=body, timeout=patience, headers=IDENTITY, allow_redirects=False
            ) as response:
                text = (await read_body(response, lambda why: ServerFailed(f"{where}: {why}"))).decode(errors="replace")
                if response.status in _REFUSALS:
                    raise ConfigurationError(
                        f"{where} refuses with {response.status}: {reason(text)}; see infra/vllm/serve.sh for its flags"
                    )
                if response.status >= 300:
                    elsewhere = redirection(response.headers)
                    raise ServerFailed(f"{where} failed with {response.status}: {elsewhere}{reason(text)}")
                return json.loads(text) if text.startswith("{") else {}
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
            raise ServerFailed(f"{where}: {type(error).__name__} {reason(error)}") from None
