"""Trajectories that a team already has, as rows of the pipeline: OpenAI messages in JSONL, JSON or
Parquet, or tau-bench's results file.

What a file does not say is read off the conversation or left neutral, never guessed from words: the
kind from the calls made, the language from the script, market `none`, difficulty 1. Tools that were
not recorded are inferred from the calls, because a model must see what it may call.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from posttrain.data.files import read_jsonl, read_parquet
from posttrain.data.inferred_tools import infer_tools
from posttrain.data.schemas import TrajectoryRow
from posttrain.exits import DataError
from posttrain.limits import MAX_MESSAGE_CHARS, MAX_RECORD_CHARS
from posttrain.redaction import redact
from posttrain.types import KINDS, SPLITS, Kind, Message, Role, StopReason, Trajectory

Format = Literal["openai", "tau_bench"]
_HAN = re.compile(r"[\u4e00-\u9fff]")
_ROLES: Mapping[str, Role] = {**{role: role for role in get_args(Role)}, "developer": "system"}  # OpenAI's newer name
_UNKNOWN_TOOLS: tuple[Mapping[str, Any], ...] = (
    {"type": "unknown"},
)  # stands in a row until the whole file has been read
_TAU_STOP_TOOL = (
    "transfer_to_human_agents"  # tau-bench ends an episode with it; any other call at the end met the limit of 30 steps
)


def import_trajectories(path: Path, file_format: Format) -> list[TrajectoryRow]:
    """Every trajectory of the file, in its order, as demonstrations (split `sft`).

    `openai`: objects with `messages`, and optionally `tools`, `reward`, `task_id` and any other
    column of TRAJECTORIES_SCHEMA; where there is no `task_id`, episodes with one opening are taken
    for plays of one task. `tau_bench`: objects with `task_id`, `trial`, `reward`, `traj`. Raises
    DataError that names the file and the record where it is absent, cut off, empty or holds
    something else.
    """
    records = _read_records(path)
    rows: list[TrajectoryRow] = []
    for number, record in enumerate(records, 1):
        try:
            rows.append(_row(_from_tau_bench(record) if file_format == "tau_bench" else record))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"{path}: record {number} of {len(records)} is no trajectory in the format {file_format}: "
                f"{reason}. {number - 1} were read before. "
                "Mend or remove the record, or name the format that the file has"
            ) from error
    if not rows:
        raise DataError(f"{path} has no trajectory; nothing can be learnt or measured from it: check the path")
    inferred = infer_tools([row.trajectory.messages for row in rows if row.tools is _UNKNOWN_TOOLS])
    return [replace(row, tools=inferred) if row.tools is _UNKNOWN_TOOLS else row for row in rows]


def _read_records(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path} is not a file; check the path (it is relative to where the command runs)")
    with path.open("rb") as file:
        head = file.read(64).lstrip()
    if path.suffix == ".parquet" or head.startswith(b"PAR1"):
        records: list[dict[str, Any]] = read_parquet(path).to_pylist()
        return records
    return _read_array(path) if head.startswith(b"[") else read_jsonl(path)


def _read_array(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        records: list[dict[str, Any]] = json.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); nothing was read: export it again") from error
    except json.JSONDecodeError as error:
        where = f"cut off or damaged at character {error.pos} of {len(text)}"
        raise DataError(
            f"{path} is {where} ({error.msg}); {_num_whole(text)} records are whole before it: "
            "fetch or export the file again"
        ) from error
    return records


def _num_whole(text: str) -> int:
    """How many items of a broken JSON array can be read."""
    decoder, position, count = json.JSONDecoder(), text.index("[") + 1, 0
    separator = re.compile(r"[\s,]*")
    try:
        while True:
            gap = separator.match(text, position)
            _, position = decoder.raw_decode(text, gap.end() if gap else position)
            count += 1
    except json.JSONDecodeError:
        return count


def _from_tau_bench(record: Mapping[str, Any]) -> Mapping[str, Any]:
    messages: Sequence[Mapping[str, Any]] = record["traj"]
    last_names = [call["function"]["name"] for message in messages[-2:] for call in message.get("tool_calls") or ()]
    stopped = messages and messages[-1]["role"] == "tool" and _TAU_STOP_TOOL in last_names
    return {
        "messages": messages,
        "task_id": f"tau_bench-{record['task_id']}",
        "reward": record["reward"],
        "seed": record["trial"],
        "stop_reason": StopReason.STOP_TOOL if stopped else None,
    }


def _messages(content: Any) -> tuple[Message, ...]:
    """OpenAI's messages, also as the JSON text of their list. Raises TypeError, KeyError or
    ValueError with what is not as the format has it."""
    listed = json.loads(content) if isinstance(content, str) else content
    if not isinstance(listed, list) or not listed:
        raise ValueError("messages is not a list with messages")
    return tuple(_message(message) for message in listed)


def _message(message: Mapping[str, Any]) -> Message:
    if message["role"] not in _ROLES:
        raise ValueError(f"role {message['role']!r} is none of {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    read = _bounded(Message.from_openai({**message, "role": _ROLES[message["role"]], "content": content}))
    if not all(isinstance(part, str) for call in read.tool_calls for part in (call.id, call.name, call.arguments)):
        raise ValueError(
            "a tool call needs id, name and arguments as text; arguments are the JSON text of an object, not the object"
        )
    return read


def _bounded(message: Message) -> Message:
    """Without keys that somebody's logs have kept. What is longer than its limit is refused: half
    of a message teaches something else."""
    texts = [message.content, message.reasoning_content or "", *(call.arguments for call in message.tool_calls)]
    if (longest := max(map(len, texts))) > MAX_MESSAGE_CHARS:
        raise ValueError(
            f"one of its messages has {longest} characters, and {MAX_MESSAGE_CHARS} are the most (posttrain/limits.py)"
        )
    reasoning = message.reasoning_content
    return replace(
        message,
        content=redact(message.content),
        reasoning_content=None if reasoning is None else redact(reasoning),
        tool_calls=tuple(replace(call, arguments=redact(call.arguments)) for call in message.tool_calls),
    )


def _row(columns: Mapping[str, Any]) -> TrajectoryRow:
    messages = _messages(columns["messages"])
    if (length := sum(len(message.content) for message in messages)) > MAX_RECORD_CHARS:
        raise ValueError(f"it has {length} characters, and {MAX_RECORD_CHARS} are the most (posttrain/limits.py)")
    played = Trajectory(
        task_id=str(columns.get("task_id") or _opening_id(messages)),
        messages=messages,
        stop_reason=StopReason(columns.get("stop_reason") or _stop_reason(messages)),
        seed=int(columns.get("seed") or 0),
        reward=_reward(columns.get("reward")),
    )
    return TrajectoryRow(
        trajectory=played,
        kind=_one_of(columns.get("kind"), KINDS) or _kind(messages),
        market=columns.get("market") or "none",
        language=columns.get("language") or _language(messages),
        difficulty=int(columns.get("difficulty") or 1),
        split=_one_of(columns.get("split"), SPLITS) or "sft",
        template=columns.get("template") or "imported",
        companies=tuple(columns.get("companies") or ()),
        tools=_tools(columns.get("tools")),
    )


def _tools(content: Any) -> tuple[Mapping[str, Any], ...]:
    listed = json.loads(content) if isinstance(content, str) else content
    if listed is None:
        return _UNKNOWN_TOOLS
    if not all(isinstance(tool["function"]["name"], str) for tool in listed):
        raise ValueError("tools is no list of OpenAI function schemas")
    return tuple(listed)


def _reward(content: Any) -> float | None:
    reward = None if content is None else float(content)
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"its reward is {reward}; a mean of it says nothing")
    return reward


def _opening_id(messages: Sequence[Message]) -> str:
    """16 hex digits of what stands before the agent's first message."""
    first = next((index for index, message in enumerate(messages) if message.role == "assistant"), len(messages))
    text = json.dumps([message.to_openai() for message in messages[:first]], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stop_reason(messages: Sequence[Message]) -> StopReason:
    return StopReason.TURN_LIMIT if messages[-1].role == "tool" or messages[-1].tool_calls else StopReason.DONE


def _kind(messages: Sequence[Message]) -> Kind:
    """By what was done: no call is a decision of timing, one is a selection, more are a plan."""
    num_calls = sum(len(message.tool_calls) for message in messages)
    return "timing_decision" if num_calls == 0 else "tool_selection" if num_calls == 1 else "multi_step_planning"


def _language(messages: Sequence[Message]) -> str:
    """By the user's first message: one Han character makes it Chinese."""
    asked = next((message.content for message in messages if message.role == "user"), "")
    return "zh" if _HAN.search(asked) else "en"


def _one_of(value: Any, choices: Sequence[Any]) -> Any:
    return value if value in choices else None
