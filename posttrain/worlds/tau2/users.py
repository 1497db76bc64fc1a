"""The simulated user of an episode: scripted, or a model behind an OpenAI-compatible endpoint.

The endpoint and its key are `POSTTRAIN_USER_BASE_URL` and `POSTTRAIN_USER_API_KEY`, or
`OPENAI_BASE_URL` and `OPENAI_API_KEY`; its limits are of `posttrain/runtime/endpoint_limits.py`.
A model reads what was said and nothing of the agent's calls, and is not the same twice: a replayed
episode may meet other words. The marks that end a conversation are tau2's; an agent never reads
them."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from posttrain.runtime.endpoint_limits import ChatParameters, account_of
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import MAX_REPLY_CHARS, clip, reason
from posttrain.types import BadNumber, JsonValue, number
from posttrain.worlds.json_endpoint import EndpointFailed, JsonEndpoint
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.tau2.goals import Scenario
from posttrain.worlds.tau2.params import OpenAiUserParams

STOP_MARKS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
_MAX_QUESTIONS = 12  # after which the scripted user loses its patience
GREETING = "Hi! How can I help you today?"  # the agent's first words to every user, as in tau2
TIMEOUT_S = 120.0
TRIES = 6
_REFUSALS = (400, 401, 403, 404, 422)  # status of every request, not of this one alone

RULES = """\
You play a customer who has contacted customer service. The scenario below says who you are, what you
know and what you want; you are talking to a service agent.

- Write the customer's next message and nothing else: one message at a time, in your own words.
- Follow the scenario. What it does not say you do not know: never invent it.
- Do not say everything at once: give what the agent asks for when it asks.
- Agreeing to an action does not end the conversation: wait until the agent says that it is done.
- When everything in the scenario has been dealt with, write ###STOP###.
- When you are transferred to another agent, write ###TRANSFER###.
- When the scenario does not say enough for you to go on, write ###OUT-OF-SCOPE###."""


class User(Protocol):
    """The user of one episode."""

    async def speak(self, said: Sequence[str]) -> str:
        """The next words. `said` is the conversation in turns: the user's first words, the agent's
        answer, and so on. Raises WorldFailed where there are none to be had."""
        ...

    async def close(self) -> None: ...


class ScriptedUser:
    """A user that tells why it calls and what it knows at once, its instructions when first asked,
    agrees to all else that is asked, and stops when nothing is."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    async def speak(self, said: Sequence[str]) -> str:
        scenario = self._scenario
        if not said:
            return "\n".join(filter(None, (scenario.reason_for_call, scenario.known_info))) or scenario.instructions
        if "TRANSFERRED TO A HUMAN" in said[-1].upper():
            return STOP_MARKS[1]
        if "?" not in said[-1] or len(said) // 2 >= _MAX_QUESTIONS:
            return STOP_MARKS[0]
        return scenario.instructions if len(said) == 2 and scenario.instructions else "Yes, please go ahead."

    async def close(self) -> None:
        pass


def is_end(words: str) -> bool:
    return any(mark in words for mark in STOP_MARKS)


class UserEndpoint:
    """The endpoint that all episodes of a domain share, with its limits."""

    def __init__(self, params: OpenAiUserParams, environment: Mapping[str, str] = os.environ) -> None:
        self.params = params
        self.url = environment.get("POSTTRAIN_USER_BASE_URL") or environment.get(
            "OPENAI_BASE_URL", "https://api.openai.com/v1"
        )
        self.key = environment.get("POSTTRAIN_USER_API_KEY") or environment.get("OPENAI_API_KEY", "")
        if not self.key:
            raise ConfigurationError(
                f"neither POSTTRAIN_USER_API_KEY nor OPENAI_API_KEY is set and {params.model} is to play the user; "
                "an endpoint without keys takes any word"
            )
        self.account = account_of("POSTTRAIN_USER", environment)
        self.parameters = ChatParameters()
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def places(self) -> asyncio.Semaphore:
        return self._places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.account.concurrent))


class OpenAiUser:
    """A user that a model plays. Raises WorldFailed where the endpoint gives no words,
    ConfigurationError where it refuses whatever is asked."""

    def __init__(self, scenario: Scenario, shared: UserEndpoint) -> None:
        self._shared = shared
        self._system = f"{RULES}\n\n{scenario_text(scenario)}"
        self._endpoint = JsonEndpoint(
            shared.url, timeout_s=TIMEOUT_S, tries=TRIES, headers={"Authorization": f"Bearer {shared.key}"}
        )

    async def speak(self, said: Sequence[str]) -> str:
        params = self._shared.params
        body = {
            "model": params.model,
            "messages": [
                {"role": "system", "content": self._system},
                {"role": "user", "content": GREETING},
                *({"role": ("assistant", "user")[turn % 2], "content": text} for turn, text in enumerate(said)),
            ],
            "temperature": params.temperature,
            "max_tokens": params.max_new_tokens,
        }
        while True:
            request = self._shared.parameters.taken(body)
            try:
                async with self._shared.places():
                    await self._shared.account.wait()
                    answer = await self._endpoint.post("/chat/completions", request, is_repeatable=True)
                break
            except EndpointFailed as error:
                if error.status in (400, 422) and self._shared.parameters.learn(request, str(error)):
                    continue
                if error.status in _REFUSALS:
                    raise ConfigurationError(f"the simulated user's endpoint refuses: {reason(error)}") from None
                raise WorldFailed(f"the simulated user does not answer: {reason(error)}") from None
        try:
            self._shared.account.pay(*_num_tokens(answer))
        except BadNumber as error:
            raise WorldFailed(f"the simulated user's endpoint makes no sense: {error}") from None
        return _words(answer)

    async def close(self) -> None:
        await self._endpoint.close()


def scenario_text(scenario: Scenario) -> str:
    parts = {
        "Persona": scenario.persona,
        "Reason for the call": scenario.reason_for_call,
        "What you know": scenario.known_info,
        "What you do not know": scenario.unknown_info,
        "Instructions": scenario.instructions,
    }
    return "\n\n".join(f"## {title}\n{text}" for title, text in parts.items() if text)


def _words(answer: JsonValue) -> str:
    try:
        words = answer["choices"][0]["message"]["content"]  # type: ignore[index,call-overload]
    except (KeyError, IndexError, TypeError):
        words = None
    if not isinstance(words, str) or not words.strip():
        raise WorldFailed(f"the simulated user's endpoint answers without words: {clip(str(answer), 200)}")
    return clip(words, MAX_REPLY_CHARS)


def _num_tokens(answer: JsonValue) -> list[float]:
    """Tokens read and written, as the endpoint counted them; 0 where it does not say."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    counts = [usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens")]
    return [number(count or 0, "its count of tokens", low=0) for count in counts]
