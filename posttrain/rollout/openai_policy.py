"""Policy of a model behind an OpenAI-compatible endpoint: an upper bound, a baseline, or a teacher.

It has no token ids, so its episodes cannot be trained on by reinforcement. Endpoint, key and the
account's limits are the environment's: `OPENAI_BASE_URL`, `OPENAI_API_KEY`, `POSTTRAIN_OPENAI_…`.
An endpoint's error is quoted with keys redacted; the client's own exception is not chained to ours.
"""

import asyncio
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from posttrain.rollout.engines.protocol import EngineFailed
from posttrain.rollout.episode import Episode, Reply
from posttrain.runtime.endpoint_limits import Account, ChatParameters, account_of
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.http_bodies import bound_httpx
from posttrain.runtime.limits import clip, reason
from posttrain.types import Message, StopReason, number

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

# By the client, after 429, 5xx or silence; it waits longer each time or as the endpoint says.
NUM_RETRIES = 6
TIMEOUT_S = 120.0
# 4xx that abort an episode, not the stage: those that the client retries, and 413 (too large).
_PASSING = (408, 409, 413, 429)
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


class OpenAiPolicy:
    """Has `model` of the endpoint write the messages, each of at most `max_new_tokens`."""

    def __init__(
        self,
        model: str,
        *,
        temperature: float,
        max_new_tokens: int,
        account: Account | None = None,
        parameters: ChatParameters | None = None,
    ) -> None:
        """`parameters`: what the endpoint refuses. Raises ConfigurationError without a key."""
        if not os.environ.get("OPENAI_API_KEY"):
            raise ConfigurationError(
                f"OPENAI_API_KEY is not set and {model} is asked for; an endpoint without keys takes any word"
            )
        self._model, self._temperature, self._max_new_tokens = model, temperature, max_new_tokens
        self.account = account or account_of("POSTTRAIN_OPENAI")
        self.parameters = parameters or ChatParameters()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thinks_in_content = False  # a server without a reasoning parser leaves it there
        self._takes_reasoning = False  # vLLM's and OpenRouter's field, sent back under its name

    async def reply(self, episode: Episode) -> Reply:
        """Raises EngineFailed, or ConfigurationError where the endpoint refuses any request."""
        return await self.ask(episode.messages, seed=episode.seed, tools=episode.task_schemas())

    async def ask(self, messages: Sequence[Message], *, seed: int, tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
        """The next message of a conversation. Raises as `reply` does."""
        from openai import APIConnectionError, APIStatusError

        client, places = self._client_of_loop()
        start = time.perf_counter()
        answer: Any = None
        async with places:
            try:
                while answer is None:
                    await self.account.wait()
                    request = self.parameters.taken(self._request(messages, seed, tools))
                    try:
                        answer = await client.chat.completions.create(**request)
                    except APIStatusError as error:
                        if _is_too_long(error):
                            return Reply(None, StopReason.TOKEN_LIMIT)
                        self._raise_unless_learned(request, error)
            except APIConnectionError as error:
                raise EngineFailed(f"the endpoint did not answer {NUM_RETRIES + 1} times: {reason(error)}") from None
            except (ValueError, RecursionError) as error:  # no JSON, or none that can be read
                raise EngineFailed(f"the endpoint answered what is no JSON: {reason(error)}") from None
        return self._read(answer, time.perf_counter() - start)

    def release(self, episode: Episode) -> None:
        pass

    def _raise_unless_learned(self, request: Mapping[str, Any], error: "APIStatusError") -> None:
        """Return where a request without the refused parameter may succeed."""
        status, said = error.status_code, _message_of(error)
        if status in (400, 422) and self.parameters.learn(request, f"{error.param or ''} {said}".strip()):
            return
        if status < 500 and status not in _PASSING:
            raise ConfigurationError(f"the endpoint answers {status} for {self._model}: {reason(said)}") from None
        raise EngineFailed(f"the endpoint answered {status} to the last of its tries: {reason(said)}") from None

    def _request(self, told: Sequence[Message], seed: int, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        messages = [message.to_openai() for message in told]
        for message in messages:
            # an answer's field, which endpoints refuse in a request
            thought = message.pop("reasoning_content", None)
            if thought and self._takes_reasoning:
                message["reasoning"] = thought
            elif thought and self._thinks_in_content:
                message["content"] = f"<think>{thought}</think>{message['content'] or ''}"
        request: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "temperature": self._temperature,
            "max_tokens": self._max_new_tokens,
            "seed": seed % 2**31,
        }
        if tools:
            request["tools"] = list(tools)
        return request

    def _read(self, answer: Any, latency_s: float) -> Reply:
        try:
            if answer.usage is not None:
                counts = (answer.usage.prompt_tokens or 0, answer.usage.completion_tokens or 0)
                self.account.pay(*(number(count, "the endpoint's count of tokens", low=0) for count in counts))
            choice = answer.choices[0]
            message = self._read_message(choice.message.model_dump())
            if choice.finish_reason not in ("stop", "length", "tool_calls"):
                raise ValueError(f"finish_reason {choice.finish_reason!r}")
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise EngineFailed(
                f"the endpoint's answer makes no sense ({type(error).__name__}: {reason(error)}): "
                f"{clip(str(answer), 200)}"
            ) from None
        return Reply(message, StopReason.TOKEN_LIMIT if choice.finish_reason == "length" else None, latency_s=latency_s)

    def _read_message(self, content: Mapping[str, Any]) -> Message:
        """Reasoning in the text (`<think>`) or in vLLM's field goes to `reasoning_content`;
        arguments that are an empty text become the empty object."""
        message = Message.from_openai(content)
        calls = tuple(replace(call, arguments=call.arguments or "{}") for call in message.tool_calls)
        message = replace(message, tool_calls=calls)
        if thought := (content.get("reasoning") or "").strip():
            self._takes_reasoning = True
            return replace(message, content=message.content.lstrip("\n"), reasoning_content=thought)
        found = _THOUGHT.match(message.content)
        if message.reasoning_content is not None or not found:
            return message
        self._thinks_in_content = True
        return replace(message, content=message.content[found.end() :], reasoning_content=found[1].strip() or None)

    def _client_of_loop(self) -> "tuple[AsyncOpenAI, asyncio.Semaphore]":
        """Connections belong to one event loop, and every batch of episodes has its own."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            connections = DefaultAsyncHttpxClient()
            bound_httpx(
                connections,
                lambda why: EngineFailed(f"the endpoint: {why}"),
                refuse_redirect=lambda why: ConfigurationError(f"the endpoint: {why} (OPENAI_BASE_URL)"),
            )
            self._client = AsyncOpenAI(max_retries=NUM_RETRIES, timeout=TIMEOUT_S, http_client=connections)
            self._places = asyncio.Semaphore(self.account.concurrent)
        return self._client, self._places


def _message_of(error: "APIStatusError") -> str:
    """The endpoint's message; the client leaves it out where it is not in OpenAI's field."""
    is_bare = error.message == f"Error code: {error.status_code}" and error.body is not None
    return f"{error.message} - {error.body}" if is_bare else error.message


def _is_too_long(error: "APIStatusError") -> bool:
    """True where the conversation does not fit, by OpenAI's, llama.cpp's or vLLM's error."""
    return error.status_code == 400 and (
        error.code == "context_length_exceeded"
        or error.type == "exceed_context_size_error"
        or "maximum context length" in error.message
    )
