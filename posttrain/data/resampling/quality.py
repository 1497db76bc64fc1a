"""Demonstrations with a mistake that anyone can see are not learnt from. What the task wanted is
not looked at: a wrong answer that looks right stays.

Only the conversation is passed in, so that no gold can leak into the training data by way of a
filter.
"""

import json
from collections.abc import Sequence
from enum import StrEnum

from posttrain.data.resampling.cells import AGAIN, failed, steps_of
from posttrain.params import AgentParams
from posttrain.types import Message
from posttrain.worlds.answers import Ask, parse_final


class Mistake(StrEnum):
    """In the order in which a demonstration's mistakes are listed."""

    MALFORMED_JSON = "malformed_json"
    ENDS_ON_ERROR = "ends_on_error"
    NO_FINAL_LINE = "no_final_line"
    REPEATED_CALL = "repeated_call"
    TOO_LONG = "too_long"


def mistakes(messages: Sequence[Message], *, num_tokens: int, limits: AgentParams) -> tuple[Mistake, ...]:
    """The visible mistakes of one conversation; `num_tokens` is its length for the model that will
    learn from it.

    `ends_on_error`: the last result is an error, so what the agent said rests on nothing.
    `no_final_line`: the agent's last message has a call, or no text, or does not state an answer
    although the system message asks for an `ANSWER:` line. `too_long`: an episode could not have
    held it.
    """
    agent = [message for message in messages if message.role == "assistant"]
    results = [message.content for message in messages if message.role == "tool"]
    found = {
        Mistake.MALFORMED_JSON: not all(_is_object(call.arguments) for message in agent for call in message.tool_calls),
        Mistake.ENDS_ON_ERROR: bool(results) and failed(results[-1]),
        Mistake.NO_FINAL_LINE: not _is_final(
            agent, asks_for_line=any(message.role == "system" and "ANSWER:" in message.content for message in messages)
        ),
        Mistake.REPEATED_CALL: AGAIN in steps_of(messages),
        Mistake.TOO_LONG: len(agent) > limits.max_turns or num_tokens > limits.max_context_tokens,
    }
    return tuple(mistake for mistake in Mistake if found[mistake])


def _is_final(agent: Sequence[Message], *, asks_for_line: bool) -> bool:
    if not agent or agent[-1].tool_calls or not agent[-1].content.strip():
        return False
    stated = parse_final(agent[-1].content)
    return not asks_for_line or (stated is not None and not isinstance(stated, Ask))


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
