"""Writes a trajectory as plain values and reads it again: the one form for tables and JSON.

What a clock said (`latency_s`) is left out: it is no part of a trajectory's value, and equal
episodes give equal bytes. The trace store has it; it packs the same fields as rows of its own
(`posttrain/traces/packing.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from posttrain.types import Message, Outcome, StopReason, ToolRun, Trajectory, Turn

_TEXT = pa.string()
_CALL = pa.struct([("id", _TEXT), ("type", _TEXT), ("function", pa.struct([("name", _TEXT), ("arguments", _TEXT)]))])
MESSAGE = pa.struct(
    [
        ("role", _TEXT),
        ("content", _TEXT),
        ("reasoning_content", _TEXT),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", _TEXT),
    ]
)
_TOOL_RUN = pa.struct([("call_id", _TEXT), ("name", _TEXT), ("outcome", _TEXT), ("num_attempts", pa.int32())])
_TURN = pa.struct(
    [
        ("num_read", pa.int32()),
        ("num_written", pa.int32()),
        ("policy_version", pa.int64()),
        ("message_index", pa.int32()),
        ("tool_runs", pa.list_(_TOOL_RUN)),
    ]
)
_OUTCOME = pa.struct(
    [
        ("success", pa.bool_()),
        ("strict_success", pa.bool_()),
        ("scores", pa.map_(_TEXT, pa.float64())),
        ("reward", pa.float64()),
        ("turn_scores", pa.list_(pa.float64())),
        ("failure", _TEXT),
        ("feedback", _TEXT),
    ]
)
COLUMNS = [
    ("task_id", _TEXT),
    ("messages", pa.list_(MESSAGE)),
    ("stop_reason", _TEXT),
    ("seed", pa.int64()),
    ("policy_version", pa.int64()),
    ("token_ids", pa.list_(pa.int32())),
    ("mask", pa.list_(pa.int8())),
    ("logprobs", pa.list_(pa.float32())),
    ("scores", pa.map_(_TEXT, pa.float64())),
    ("reward", pa.float64()),
    ("turns", pa.list_(_TURN)),
    ("num_forks", pa.int32()),
    ("failure", _TEXT),
    ("outcome", _OUTCOME),
]


def trajectory_columns(trajectory: Trajectory) -> dict[str, Any]:
    """The row of COLUMNS, as plain JSON values."""
    return {
        "task_id": trajectory.task_id,
        "messages": message_columns(trajectory.messages),
        "stop_reason": str(trajectory.stop_reason),
        "seed": trajectory.seed,
        "policy_version": trajectory.policy_version,
        "token_ids": list(trajectory.token_ids),
        "mask": list(trajectory.mask),
        "logprobs": list(trajectory.logprobs),
        "scores": sorted(trajectory.scores.items()),
        "reward": trajectory.reward,
        "turns": [_turn_columns(turn) for turn in trajectory.turns],
        "num_forks": trajectory.num_forks,
        "failure": trajectory.failure,
        "outcome": None if trajectory.outcome is None else outcome_columns(trajectory.outcome),
    }


def trajectory_from_columns(columns: Mapping[str, Any]) -> Trajectory:
    """The trajectory of such a row. Raises KeyError, TypeError or ValueError on anything else."""
    return Trajectory(
        task_id=columns["task_id"],
        messages=messages_from_columns(columns["messages"]),
        stop_reason=StopReason(columns["stop_reason"]),
        seed=columns["seed"],
        policy_version=columns["policy_version"],
        token_ids=tuple(columns["token_ids"]),
        mask=tuple(columns["mask"]),
        logprobs=tuple(columns["logprobs"]),
        scores=dict(columns["scores"]),
        reward=columns["reward"],
        turns=tuple(map(_turn_from_columns, columns["turns"])),
        num_forks=columns["num_forks"],
        failure=columns["failure"],
        outcome=None if columns["outcome"] is None else outcome_from_columns(columns["outcome"]),
    )


def outcome_columns(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain JSON values, its scores as sorted pairs."""
    return {
        "success": outcome.success,
        "strict_success": outcome.strict_success,
        "scores": sorted(outcome.scores.items()),
        "reward": outcome.reward,
        "turn_scores": list(outcome.turn_scores),
        "failure": outcome.failure,
        "feedback": outcome.feedback,
    }


def outcome_from_columns(columns: Mapping[str, Any]) -> Outcome:
    """What `outcome_columns` made of one. Raises KeyError, TypeError or ValueError on anything
    else."""
    return Outcome(**{**columns, "scores": dict(columns["scores"]), "turn_scores": tuple(columns["turn_scores"])})


def unlearnt(trajectory: Trajectory) -> frozenset[int]:
    """The places of the assistant messages that the agent did not write itself, and that it is not
    trained on: those of no turn, where the turns are known."""
    own = {turn.message_index for turn in trajectory.turns}
    said = (index for index, message in enumerate(trajectory.messages) if message.role == "assistant")
    return frozenset(index for index in said if index not in own) if own else frozenset()


def message_columns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Each message in OpenAI's shape, `arguments` as JSON text."""
    return [message.to_openai() for message in messages]


def messages_from_columns(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """What `message_columns` made of messages."""
    return tuple(Message.from_openai(message) for message in messages)


def _turn_columns(turn: Turn) -> dict[str, Any]:
    runs = [
        {"call_id": run.call_id, "name": run.name, "outcome": run.outcome, "num_attempts": run.num_attempts}
        for run in turn.tool_runs
    ]
    return {
        "num_read": turn.num_read,
        "num_written": turn.num_written,
        "policy_version": turn.policy_version,
        "message_index": turn.message_index,
        "tool_runs": runs,
    }


def _turn_from_columns(columns: Mapping[str, Any]) -> Turn:
    return Turn(**{**columns, "tool_runs": tuple(ToolRun(**run) for run in columns["tool_runs"])})
