"""Quality filter: finds mistakes that are visible in a demonstration without its task's goal.

Only the conversation and its stop reason are passed in, so that no goal and no outcome leaks into
the training data by way of the filter; a wrong answer that looks right stays. What a user says in
between may make a repeated call right, or an error right to end on.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from posttrain.data.params import KeepParams
from posttrain.data.resampling.cells import failed
from posttrain.data.schemas import TrajectoryRow
from posttrain.runtime.exits import DataError
from posttrain.runtime.import_by_name import load_named
from posttrain.types import Message, StopReason
from posttrain.worlds.lookups.gold import Ask, parse_final
from posttrain.worlds.tools import json_object


class Mistake(StrEnum):
    """Visible mistakes, in the order in which they are listed."""

    MALFORMED_JSON = "malformed_json"
    ENDS_ON_ERROR = "ends_on_error"
    NO_FINAL_LINE = "no_final_line"
    REPEATED_CALL = "repeated_call"
    TOO_MANY_TURNS = "too_many_turns"
    TOO_LONG = "too_long"


ENDS_WITHOUT_ANSWER = (StopReason.STOP_TOOL, StopReason.WORLD_OVER)
REMEDIES: Mapping[Mistake, str] = {
    Mistake.MALFORMED_JSON: "mend the calls in the source",
    Mistake.ENDS_ON_ERROR: "cut them before the failed call",
    Mistake.NO_FINAL_LINE: (
        "give the source's stop tools in generate_data.source.stop_tools, or take the ANSWER: line out of the system "
        "text where none is wanted"
    ),
    Mistake.REPEATED_CALL: "take the second call out of the source",
    Mistake.TOO_MANY_TURNS: "raise agent.max_turns",
    Mistake.TOO_LONG: "raise agent.max_context_tokens",
}


def mistakes(
    messages: Sequence[Message],
    stop_reason: StopReason,
    *,
    num_tokens: int,
    max_turns: int,
    max_context_tokens: int,
    read_only: Collection[str] = (),
) -> tuple[Mistake, ...]:
    """The visible mistakes of a conversation; `num_tokens` is its length for the base model,
    `read_only` names the tools that change nothing.

    `ends_on_error`: the last result is an error and only the agent wrote since, so its answer rests
    on nothing. `no_final_line`: neither a stop tool nor the world ended it, and the agent's last
    message has a call, or no text, or no answer although the system message asks for an `ANSWER:`
    line. `repeated_call`: the same call had the same result, and between the two the user wrote
    nothing and no tool was called that may change something. `too_many_turns` and `too_long`: an
    episode's limits are exceeded.
    """
    agent = [message for message in messages if message.role == "assistant"]
    found = {
        Mistake.MALFORMED_JSON: any(
            json_object(call.arguments) is None for message in agent for call in message.tool_calls
        ),
        Mistake.ENDS_ON_ERROR: _ends_on_error(messages),
        Mistake.NO_FINAL_LINE: stop_reason not in ENDS_WITHOUT_ANSWER
        and not _is_final(
            agent, asks_for_line=any(message.role == "system" and "ANSWER:" in message.content for message in messages)
        ),
        Mistake.REPEATED_CALL: _repeats(messages, read_only),
        Mistake.TOO_MANY_TURNS: len(agent) > max_turns,
        Mistake.TOO_LONG: num_tokens > max_context_tokens,
    }
    return tuple(mistake for mistake in Mistake if found[mistake])


@dataclass(frozen=True, slots=True)
class Keeper:
    """The test of `resample_data.keep`, with the least reward that it accepts."""

    params: KeepParams
    min_reward: float

    def __call__(self, row: TrajectoryRow) -> bool:
        params, played = self.params, row.trajectory
        num_steps = sum(message.role == "assistant" for message in played.messages)
        return (
            (played.reward is None or played.reward >= self.min_reward)
            and (params.max_steps is None or num_steps <= params.max_steps)
            and (params.function is None or bool(_function(params.function)(row)))
        )


def keeper(params: KeepParams, rewards: Iterable[float | None]) -> Keeper:
    """The test of `params`; `rewards` are those of all demonstrations. Raises ConfigurationError
    where its function cannot be imported."""
    known = [one for one in rewards if one is not None]
    bounds = [-math.inf if params.min_reward is None else params.min_reward]
    if params.min_percentile is not None and known:
        bounds.append(float(np.percentile(known, params.min_percentile)))
    if params.function is not None:
        _function(params.function)
    return Keeper(params, max(bounds))


@cache
def _function(name: str) -> Any:
    return load_named(name, knob="resample_data.keep.function is")


def refuse_too_many_dropped(found: Sequence[tuple[Mistake, ...]], *, max_dropped_frac: float, source: Path) -> None:
    """Raises DataError with the count and the remedy of each mistake where a larger share of the
    demonstrations than the accepted one, or all, have one."""
    num_dropped = sum(bool(those) for those in found)
    if num_dropped <= max_dropped_frac * len(found) and num_dropped < len(found):
        return
    counts = Counter(mistake for those in found for mistake in those)
    by_reason = "; ".join(
        f"{mistake} {counts[mistake]} ({REMEDIES[mistake]})"
        for mistake in sorted(counts, key=lambda mistake: (-counts[mistake], mistake))
    )
    raise DataError(
        f"the quality filter drops {num_dropped} of {len(found)} demonstrations in {source}, and "
        f"resample_data.max_dropped_frac accepts {max_dropped_frac:.1%}: {by_reason}. What is left would be another "
        "data set than the one that was meant; or keep them all with resample_data.quality_filter: false"
    )


def _ends_on_error(messages: Sequence[Message]) -> bool:
    last = next((message for message in reversed(messages) if message.role in ("tool", "user")), None)
    return last is not None and last.role == "tool" and failed(last.content)


def _repeats(messages: Sequence[Message], read_only: Collection[str]) -> bool:
    results = {message.tool_call_id: message.content for message in messages if message.role == "tool"}
    seen: dict[tuple[str, str], str | None] = {}
    for message in messages:
        if message.role == "user":
            seen = {}
        for call in message.tool_calls:
            key, result = (call.name, call.arguments), results.get(call.id)
            if key in seen and seen[key] == result:
                return True
            # after a tool that may change something, the same read may rightly be made again
            seen = {**(seen if call.name in read_only else {}), key: result}
    return False


def _is_final(agent: Sequence[Message], *, asks_for_line: bool) -> bool:
    if not agent or agent[-1].tool_calls or not agent[-1].content.strip():
        return False
    stated = parse_final(agent[-1].content)
    return not asks_for_line or (stated is not None and not isinstance(stated, Ask))
