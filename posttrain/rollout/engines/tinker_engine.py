"""Client of a Tinker server, which trains and samples one LoRA policy, and the engine over it.

The server is the one of `TINKER_BASE_URL`, without it Thinking Machines' own; the key is
`TINKER_API_KEY`, read from the environment alone. The wire format changes with versions of the SDK
`tinker` and is left to it. What the SDK would repeat for ever has a limit here, and what the server
refuses ends the run with the server's own words.
"""

import asyncio
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import numpy as np

from posttrain.models.params import OptimizerParams
from posttrain.rollout.engines.protocol import EngineFailed, GenerateRequest, Generation
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted
from posttrain.runtime.limits import clip, reason

PATIENCE_S = 3600.0  # of one operation, its time in the server's queue included
EPS = 1e-8  # of AdamW, as in torch; Tinker's default is 1e-12
MAX_BYTES = {"adapter_config.json": 2**20, "adapter_model.safetensors": 2**35}
_HEALTH_S, _CLOSING_S = 10.0, 10.0
_TRANSIENT = (408, 409, 410, 429)  # and 5xx: running again may help


def require_server() -> tuple[Any, str, str]:
    """The SDK, the key, and the server's name of the model that training begins from. Raises
    ConfigurationError without one of them, Interrupted where no server answers within seconds, for
    which the SDK would ask for minutes."""
    os.environ.setdefault("TINKER_TELEMETRY", "0")  # its reports of errors hold headers of requests
    try:
        import httpx
        import tinker
    except ImportError as error:
        raise ConfigurationError(
            f"POSTTRAIN_TRAINER is tinker and its SDK is not installed ({error}): pip install 'tinker>=0.38,<0.39'"
        ) from None
    wanted = {
        "TINKER_API_KEY": "your account's, or for a server of your own any that begins with tml-",
        "POSTTRAIN_TINKER_MODEL": "the server's name of the model that training begins from, such as Qwen/Qwen3-8B",
    }
    for name, what in wanted.items():
        if not os.environ.get(name):
            raise ConfigurationError(f"POSTTRAIN_TRAINER is tinker and {name} is not set: export {what}")
    try:
        httpx.get(f"{_base_url()}/api/v1/healthz", timeout=_HEALTH_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Interrupted(
            f"no Tinker server answers at {clip(_base_url(), 200)} ({type(error).__name__} {reason(error)}): start it, "
            "or correct TINKER_BASE_URL"
        ) from None
    return tinker, os.environ["TINKER_API_KEY"], os.environ["POSTTRAIN_TINKER_MODEL"]


class TinkerPolicy:
    """A LoRA policy on the server; to be closed, as a context manager. `num_steps`: optimizer
    steps made by this client."""

    def __init__(self, *, state: str | None, **lora: Any) -> None:
        """Create the policy with the SDK's `lora` (rank, seed, parts to train), or go on from
        `state`, a path that `save_state` gave. Raises as `require_server` does, and
        ConfigurationError where the server refuses."""
        self.sdk, key, base_model = require_server()
        self.num_steps = 0
        with _asking("create the policy"):
            self._service = self.sdk.ServiceClient(base_url=_base_url(), api_key=key)
            with warnings.catch_warnings():  # a RestClient of its own would not be closed with the service's
                warnings.simplefilter("ignore", FutureWarning)
                self._rest = self._service.create_rest_client()
            make = self._service.create_training_client_from_state_with_optimizer
            made = make(state) if state else self._service.create_lora_training_client(base_model, **lora)
            self._training = made.result(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(Exception):  # a server that is gone must not hide why the run ends
            self._service.close("errored" if kind else "success").result(_CLOSING_S)

    def sampler(self) -> Any:
        """The SDK's sampling client of the weights as they are now."""
        with _asking("save weights for the sampler"):
            return self._training.save_weights_and_get_sampling_client().result(PATIENCE_S)

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[Any]:
        """Log-probability in nats of each row's T tokens from the second on, (T - 1,) each."""
        # without a weight: a server that made a backward pass all the same would add up zeros
        data = [self._datum(ids, weights=np.zeros(len(ids) - 1, np.float32)) for ids in rows]
        with _asking("score tokens (forward)"):
            return _logprobs_of(self._training.forward(data, "cross_entropy").result(PATIENCE_S), rows)

    def accumulate(
        self,
        rows: Sequence[Sequence[int]],
        logprobs: Sequence[Any],
        advantages: Sequence[Any],
        loss: Literal["importance_sampling", "ppo"],
        config: Mapping[str, float],
    ) -> tuple[list[Any], float]:
        """Add the gradient of the rows' loss to the policy's. `logprobs` to compare with and
        `advantages`, 0 where nothing is learnt: (T - 1,) of each row, of token t + 1 in place t.
        Returns log-probabilities like `logprobs` does, and the loss, a sum over tokens."""
        numbers = zip(rows, logprobs, advantages, strict=True)
        data = [self._datum(ids, logprobs=before, advantages=own) for ids, before, own in numbers]
        with _asking(f"learn (forward_backward by {loss})"):
            answer = self._training.forward_backward(data, loss, config).result(PATIENCE_S)
        return _logprobs_of(answer, rows), float(answer.metrics.get("loss:sum", np.nan))

    def step(self, params: OptimizerParams, lr: float) -> None:
        """Make an AdamW step at the rate `lr` by the gradients that were added up."""
        beta1, beta2 = params.betas
        how = {"eps": EPS, "weight_decay": params.weight_decay, "grad_clip_norm": params.max_grad_norm}
        with _asking("make an optimizer step"):
            adam = self.sdk.AdamParams(learning_rate=lr, beta1=beta1, beta2=beta2, **how)
            self._training.optim_step(adam).result(PATIENCE_S)
        self.num_steps += 1

    def save_state(self, name: str) -> str:
        """Have the server keep weights and optimizer; returns the path to go on from."""
        with _asking("save its state"):
            return str(self._training.save_state(name).result(PATIENCE_S).path)

    def download(self, name: str, folder: Path) -> None:
        """Write the adapter into `folder`, in the two files of PEFT's format. Raises
        ConfigurationError where the server does not offer exactly these."""
        with _asking("export the adapter (save_weights_external)"):
            path = self._training.save_weights_external(name).result(PATIENCE_S).path
            urls = self._rest.get_external_weights_urls(path).result(PATIENCE_S).urls
        if not MAX_BYTES.keys() <= urls.keys():
            raise ConfigurationError(
                f"the Tinker server exports {', '.join(sorted(urls)) or 'no file'}, and {' and '.join(MAX_BYTES)} are "
                "needed, for pickles are not read: take a server that exports adapters as safetensors"
            )
        for file, max_bytes in MAX_BYTES.items():
            _fetch(urls[file], folder / file, max_bytes)

    def _datum(self, ids: Sequence[int], **values: Any) -> Any:
        prompt = self.sdk.ModelInput.from_ints(list(ids[:-1]))
        targets = np.asarray(ids[1:], np.int64)
        return self.sdk.Datum(model_input=prompt, loss_fn_inputs={"target_tokens": targets, **values})


class TinkerEngine:
    """Engine of the policy's weights at the last `refresh_weights`, or when this was made; a
    message has `timeout_s`, the server's queue included."""

    def __init__(self, policy: TinkerPolicy, *, timeout_s: float) -> None:
        self._policy, self._timeout_s, self._in_flight = policy, timeout_s, 0
        self.policy_version, self._sampler = policy.num_steps, policy.sampler()

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raises ConfigurationError where the server refuses or leaves out what is learnt from,
        EngineFailed where it does not answer."""
        sampling = self._policy.sdk.SamplingParams(
            max_tokens=request.max_new_tokens,
            temperature=request.temperature,
            # the seed takes in where a turn begins: the server has no stream over turns
            seed=(request.seed * 1_000_003 + len(request.token_ids)) % 2**31,
            stop=sorted(request.stop_ids),
        )
        prompt, version = self._policy.sdk.ModelInput.from_ints(list(request.token_ids)), self.policy_version
        self._in_flight += 1
        try:
            asked = self._sampler.sample(prompt, 1, sampling).future()
            answer = await asyncio.wait_for(asyncio.wrap_future(asked), self._timeout_s)
        except Exception as error:  # whatever the SDK raises in its own loop
            end = _end_of(error, "sample", self._timeout_s)
            raise end if isinstance(end, ConfigurationError) else EngineFailed(str(end)) from None
        finally:
            self._in_flight -= 1
        [written] = answer.sequences
        token_ids, logprobs = list(written.tokens), written.logprobs or []
        if len(logprobs) != len(token_ids):
            raise ConfigurationError(
                f"the Tinker server gave {len(token_ids)} tokens with {len(logprobs)} log-probabilities: importance "
                "weights need one of each; take a server that gives them"
            )
        if written.stop_reason == "stop" and not {*token_ids[-1:]} & request.stop_ids:
            raise ConfigurationError(
                f"the Tinker server leaves the stop token out of a sample, which ends with {token_ids[-1:]}: it is "
                "learnt, too; take a server that gives it"
            )
        return Generation(token_ids, logprobs, written.stop_reason, version)

    def release(self, episode_id: str) -> None:
        pass  # the server keeps nothing of an episode

    def refresh_weights(self) -> None:
        if self._in_flight:
            raise RuntimeError(f"{self._in_flight} messages are being written: await them first")
        if self._policy.num_steps != self.policy_version:
            self.policy_version, self._sampler = self._policy.num_steps, self._policy.sampler()

    def sleep(self) -> None:
        pass  # the server's memory is its own


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Context of a request, in which errors of the SDK become ends of the stage."""
    try:
        yield
    except (TypeError, AttributeError, KeyError):
        raise  # a bug, or an SDK of another version
    except Exception as error:
        raise _end_of(error, what, PATIENCE_S) from None


def _end_of(error: Exception, what: str, timeout_s: float) -> ConfigurationError | Interrupted:
    """The stage's end for an error of the SDK: a refusal, or a failure that may pass."""
    cause = error if hasattr(error, "status_code") else error.__cause__  # retrieving wraps it
    status, category = getattr(cause, "status_code", 500), getattr(getattr(error, "category", None), "value", "")
    told, is_plain = reason(str(error)) or type(error).__name__, type(error).__name__ == "TinkerError"  # of a bad key
    if is_plain or category == "user" or (status < 500 and status not in _TRANSIENT):
        return ConfigurationError(f"asked to {what}, the Tinker server refuses: {told}")
    if isinstance(error, TimeoutError):
        told = f"no answer within {timeout_s:g} s"
    return Interrupted(f"asked to {what}, the Tinker server failed: {told}; run again to go on from the checkpoint")


def _logprobs_of(answer: Any, rows: Sequence[Sequence[int]]) -> list[Any]:
    found = [np.asarray(one["logprobs"].data, np.float32) for one in answer.loss_fn_outputs if "logprobs" in one]
    if [len(one) for one in found] != [len(ids) - 1 for ids in rows]:
        raise ConfigurationError(
            "the Tinker server answers without a log-probability for each token (loss_fn_outputs.logprobs): importance "
            "weights and clipping need them; take a server that gives them"
        )
    return found


def _fetch(url: str, file: Path, max_bytes: int) -> None:
    import httpx

    parts, own = urlsplit(url), urlsplit(_base_url())
    if parts.scheme != "https" and (parts.scheme, parts.hostname) != (own.scheme, own.hostname):
        raise ConfigurationError(f"the Tinker server names {clip(url, 200)} for {file.name}: only https is read")
    num_bytes = 0
    try:
        # a signed address of a store: no key goes there
        with httpx.stream("GET", url, timeout=60.0, headers={"Accept-Encoding": "identity"}) as response:
            response.raise_for_status()
            with file.open("wb") as target:
                for piece in response.iter_raw():
                    if (num_bytes := num_bytes + len(piece)) > max_bytes:
                        raise DataError(f"{file.name} of the Tinker server has more than {max_bytes} bytes")
                    target.write(piece)
    except httpx.HTTPError as error:
        raise Interrupted(f"{file.name} cannot be downloaded ({type(error).__name__}); run again") from None


def _base_url() -> str:
    from tinker.lib.base_url import resolve_base_url

    return str(resolve_base_url())
