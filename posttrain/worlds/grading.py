"""The general scores, which every outcome has, and a class for a failure without one."""

from collections.abc import Mapping
from dataclasses import replace

from posttrain.runtime.limits import MAX_FAILURE_CHARS, clip
from posttrain.types import Outcome, StopReason, Trajectory
from posttrain.worlds.made_calls import agent_messages, calls_made, repeated_reads
from posttrain.worlds.tools import Tool

# The first three are good at 1, the others name a mistake that happened at 1.
GENERAL_SCORES = ("completion", "strictness", "format", "redundant_call", "format_error", "timeout")
OUT_OF_TIME = frozenset({StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.TIME_LIMIT})


def completed(outcome: Outcome, trajectory: Trajectory, tools: Mapping[str, Tool]) -> Outcome:
    """The outcome with every general score, and with a class where a failure has none. A score that
    the world itself gave under one of these names stands; `completion` and `strictness` repeat its
    verdict. Its texts are kept without keys and within their limit.

    `format`: share of the agent's messages that can be read, 0.0 where there is none.
    `redundant_call`: a read was repeated with nothing changed between. `format_error`: a call does
    not parse. `timeout`: the episode met its limit of turns, tokens or time.
    """
    messages, calls = agent_messages(trajectory), calls_made(trajectory)
    malformed = {call.message_index for call in calls if call.is_malformed}
    general = {
        "format": 1 - len(malformed) / len(messages) if messages else 0.0,
        "redundant_call": float(bool(repeated_reads(calls, tools))),
        "format_error": float(bool(malformed)),
        "timeout": float(trajectory.stop_reason in OUT_OF_TIME),
    }
    success = {"completion": float(outcome.success), "strictness": float(outcome.strict_success)}
    failure = "" if outcome.success else outcome.failure or _failure(trajectory, has_malformed=bool(malformed))
    return replace(
        outcome,
        scores={**general, **outcome.scores, **success},
        failure=clip(failure, MAX_FAILURE_CHARS),
        feedback=clip(outcome.feedback, MAX_FAILURE_CHARS),
    )


def _failure(trajectory: Trajectory, *, has_malformed: bool) -> str:
    if trajectory.stop_reason in OUT_OF_TIME:
        return str(trajectory.stop_reason)
    return "bad_json" if has_malformed else "goal_not_reached"
