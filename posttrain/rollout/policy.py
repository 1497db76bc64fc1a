"""Policies: write the agent's next message, by a model behind an engine or by a script.

`TokenPolicy` never tokenises the model's own text: the context grows by the ids that were generated
and by the encoding of what came from outside (text that goes back through a tokenizer may come out
as other tokens than the sampled ones).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from posttrain.rollout.conversation import Conversation
from posttrain.rollout.engines.protocol import Engine, EngineFailed, GenerateRequest
from posttrain.rollout.episode import Episode, Reply
from posttrain.runtime.exits import ConfigurationError
from posttrain.types import Message, StopReason, Task, ToolCall
from posttrain.worlds.protocol import Expert, ExpertDomain


class Policy(Protocol):
    """Writes the messages of many episodes at once."""

    async def reply(self, episode: Episode) -> Reply:
        """The next message; does not change the episode."""
        ...

    def release(self, episode: Episode) -> None:
        """Free what is kept for the episode; called once for each."""
        ...


class Codec(Protocol):
    """Methods of `posttrain.models.codec.ChatCodec`; experts need no transformers."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Tokens up to where the agent begins to write."""
        ...

    def encode_assistant(self, message: Message) -> list[int]:
        """Tokens of a message as the agent would have written it, stop token included."""
        ...

    def encode_results(self, messages: Sequence[Message], calls: Sequence[ToolCall]) -> list[int]:
        """Tokens between an agent's message, which made `calls`, and its next."""
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[Mapping[str, Any]]) -> Message:
        """The message that generated ids encode."""
        ...


class ScriptedPolicy:
    """Has scripted experts, `make_expert(task, seed)`, write the messages. No tokens."""

    def __init__(self, make_expert: Callable[[Task, int], Expert]) -> None:
        self._make_expert = make_expert
        self._experts: dict[str, Expert] = {}

    async def reply(self, episode: Episode) -> Reply:
        expert = self._experts.get(episode.episode_id)
        if expert is None:
            expert = self._experts[episode.episode_id] = self._make_expert(episode.task, episode.seed)
        return Reply(expert.reply(episode.messages))

    def release(self, episode: Episode) -> None:
        self._experts.pop(episode.episode_id, None)


def expert_policy(domain: ExpertDomain, *, is_flawless: bool, reasoning_frac: float) -> ScriptedPolicy:
    """The policy of the world's own expert; a flawless one solves every task."""
    return ScriptedPolicy(
        lambda task, seed: domain.expert(task, seed=seed, is_flawless=is_flawless, reasoning_frac=reasoning_frac)
    )


class TokenPolicy:
    """Has a model behind an engine write the messages. `temperature` 0 is greedy."""

    def __init__(self, engine: Engine, codec: Codec, *, temperature: float) -> None:
        self._engine = engine
        self._codec = codec
        self._temperature = temperature
        self._prompts: dict[str, list[int]] = {}

    def at(self, temperature: float) -> "TokenPolicy":
        """The same engine at another temperature."""
        return TokenPolicy(self._engine, self._codec, temperature=temperature)

    async def reply(self, episode: Episode) -> Reply:
        """Raises ConfigurationError where the opening alone leaves no room in the context, and
        EngineFailed for a log-probability that is not finite: the one way from an engine into a
        trajectory."""
        read = episode.read()
        context_ids = self._unread_ids(episode, read)
        token_ids = [*read.token_ids, *context_ids]
        room = episode.limits.max_context_tokens - len(token_ids)
        if room < 1:
            if self._is_opening(episode):
                raise ConfigurationError(
                    f"the opening messages of task {episode.task.task_id} take {len(token_ids)} tokens and "
                    f"agent.max_context_tokens is {episode.limits.max_context_tokens}: the agent could not write a "
                    "word; raise it or offer fewer tools"
                )
            return Reply(None, StopReason.TOKEN_LIMIT)
        start = time.perf_counter()
        generation = await self._engine.generate(
            GenerateRequest(
                episode_id=episode.episode_id,
                token_ids=token_ids,
                max_new_tokens=min(room, episode.limits.max_new_tokens),
                temperature=self._temperature,
                seed=episode.seed,
                stop_ids=self._codec.stop_ids,
            )
        )
        if broken := [one for one in generation.logprobs if not math.isfinite(one)]:
            raise EngineFailed(
                f"{type(self._engine).__name__} gave a token of episode {episode.episode_id} the log-probability "
                f"{broken[0]}, which in a gradient would make every weight NaN: the weights that it has diverged, or "
                "it computes wrongly"
            )
        return Reply(
            message=self._codec.parse(generation.token_ids, episode.now.schemas),
            stop=None if generation.finish == "stop" else StopReason.TOKEN_LIMIT,
            context_ids=context_ids,
            token_ids=generation.token_ids,
            logprobs=generation.logprobs,
            policy_version=generation.policy_version,
            latency_s=time.perf_counter() - start,
        )

    def release(self, episode: Episode) -> None:
        self._engine.release(episode.episode_id)

    def context_ids(self, episode: Episode) -> list[int]:
        """Tokens that the agent has not read yet, up to where it writes."""
        return self._unread_ids(episode, episode.read())

    def _unread_ids(self, episode: Episode, read: Conversation) -> list[int]:
        return self._prompt(episode) if self._is_opening(episode) else self._context(read)

    def _is_opening(self, episode: Episode) -> bool:
        now = episode.now
        return not now.turns and tuple(now.messages) == episode.task.messages and now.schemas == episode.task_schemas()

    def _prompt(self, episode: Episode) -> list[int]:
        """Tokens of the task's opening, cached: the episodes of a group share it, and rendering it
        costs as much as a turn of a small model."""
        task = episode.task
        if task.task_id not in self._prompts:
            self._prompts[task.task_id] = self._codec.encode_prompt(task.messages, episode.task_schemas())
        return self._prompts[task.task_id]

    def _context(self, conversation: Conversation) -> list[int]:
        """Tokens of the unread messages; the program inserted an assistant's among them."""
        context_ids: list[int] = []
        pending: list[Message] = []
        is_beginning = not conversation.turns
        # Chat templates write results in the order of the calls, without their ids.
        calls = [call for index in conversation.written()[-1:] for call in conversation.messages[index].tool_calls]
        for message in [*conversation.unread(), None]:
            if message is not None and message.role != "assistant":
                pending.append(message)
                continue
            context_ids += (
                self._codec.encode_prompt(pending, conversation.schemas)
                if is_beginning
                else self._codec.encode_results(pending, calls)
            )
            if message is not None:
                context_ids += self._codec.encode_assistant(message)
                pending, is_beginning, calls = [], False, list(message.tool_calls)
        return context_ids
