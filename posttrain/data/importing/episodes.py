"""One record, in the shape that every format is brought into, as a row.

What it does not say is read off the conversation or left out, never guessed from words: the kind
from the calls made, the language from the script. What it says is kept or, where it is out of
range, refused: a seed, an id or a reward that was changed on the way in would be another record.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from posttrain.data.importing.fields import SCORES, Fields, without_nulls
from posttrain.data.importing.messages import read_messages
from posttrain.data.importing.texts import from_json, refuse_halves
from posttrain.data.schemas import TrajectoryRow
from posttrain.types import SPLITS, Message, Outcome, StopReason, Trajectory, Turn

MAX_ID_CHARS = 512
MAX_LABELS = 64
MAX_REWARD = 1e9
UNKNOWN_TOOLS: tuple[Mapping[str, Any], ...] = ({"type": "unknown"},)  # stands in a row until the whole file was read
OWN_LABELS = ("kind", "language", "difficulty")  # which may stand beside `labels`, as columns
_COLUMNS = (
    *(
        "system",
        "tools",
        "success",
        "reward",
        "task_id",
        "seed",
        "stop_reason",
        "split",
        "template",
        "entities",
        "labels",
    ),
)
_ANSWERS = ("response", "responses", "completion", "output", "answer", "final_answer", "target")
_HAN = re.compile(r"[\u4e00-\u9fff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def row_of(read: Mapping[str, Any], fields: Fields, *, stop_tools: Collection[str]) -> TrajectoryRow:
    """`read` is what the record's format gives of a row, `messages` at least; any other column is
    taken from the record's own `fields`. Raises ValueError, KeyError, TypeError and the like with
    what is wrong with it."""
    own = {name: fields.take(name) for name in (*_COLUMNS, *OWN_LABELS)}
    record = {**own, **read}
    if fields.has("trajectory_id") and fields.has("turns"):
        record |= _played(fields)
    spoken = read_messages(record["messages"], system=record["system"], tools=record["tools"], unread=fields.unread)
    messages = spoken.messages
    outcome = _outcome(record, fields.key("success"))
    if outcome is not None and record["reward"] is not None:
        fields.unread.update(key for key in SCORES if fields.raw(key) is not None)
    fields.close()
    unlearnt = spoken.unlearnt | record.get("unlearnt", frozenset())
    _refuse_unanswered(messages, record, fields)
    played = Trajectory(
        task_id=_id(record.get("task_id")) or _opening_id(messages, unlearnt),
        messages=messages,
        stop_reason=_stop_reason(record.get("stop_reason"), messages, stop_tools),
        seed=_integer(record.get("seed"), "seed", most=2**63 - 1) or 0,
        reward=None if outcome is None else outcome.reward,
        turns=_turns(messages, unlearnt),
        outcome=outcome,
    )
    return TrajectoryRow(
        trajectory=played,
        labels=_labels(record, messages),
        split=_split(record.get("split")),
        template=_text(record.get("template"), "template") or "imported",
        entities=_entities(record),
        tools=UNKNOWN_TOOLS if spoken.tools is None else spoken.tools,
    )


def opening_of(messages: Sequence[Message], unlearnt: Collection[int] = ()) -> Sequence[Message]:
    """What stands before the first message that the agent itself wrote."""
    own = (index for index, one in enumerate(messages) if one.role == "assistant" and index not in unlearnt)
    return messages[: next(own, len(messages))]


def _played(fields: Fields) -> dict[str, Any]:
    """What a row of the pipeline's own says of the episode beside its messages: its outcome, and
    which of the assistant's messages the agent itself wrote. Its tokens belong to one tokenizer."""
    outcome, turns = fields.raw("outcome") or {}, fields.raw("turns")
    for name in ("trajectory_id", "reasoning", "policy_version", "token_ids", "mask", "logprobs", "scores"):
        fields.raw(name)
    for name in ("num_forks", "failure"):
        fields.raw(name)
    said = {name: outcome[name] for name in ("success", "reward") if outcome.get(name) is not None}
    own = {turn["message_index"] for turn in turns}
    listed = from_json(fields.content["messages"], "messages")
    places = (index for index, one in enumerate(listed) if one["role"] == "assistant")
    return {**said, "unlearnt": frozenset(index for index in places if own and index not in own)}


def _refuse_unanswered(messages: Sequence[Message], record: Mapping[str, Any], fields: Fields) -> None:
    """A conversation that ends with the user is a demonstration of nothing, unless the record says
    that it is a play that ended there; one without its last word may have that elsewhere."""
    if messages[-1].role != "assistant" and (key := next((key for key in _ANSWERS if key in fields.left()), None)):
        raise ValueError(
            f"its last message is no answer of the agent, and it has {key!r}, which is not read: put that into a last "
            "message, or remove it"
        )
    if messages[-1].role in ("user", "system") and record.get("stop_reason") is None and record.get("reward") is None:
        raise ValueError(
            f"its last message is the {messages[-1].role}'s, so nobody shows what the agent should say to it: put the "
            "answer behind it, or cut it off"
        )


def _turns(messages: Sequence[Message], unlearnt: Collection[int]) -> tuple[Turn, ...]:
    """Empty where all of the agent's messages are to be learnt; else a turn for each that is."""
    if not unlearnt:
        return ()
    learnt = [index for index, one in enumerate(messages) if one.role == "assistant" and index not in unlearnt]
    if not learnt:
        raise ValueError("none of its messages is to be learnt")
    return tuple(Turn(num_read=0, num_written=0, policy_version=0, message_index=index) for index in learnt)


def _outcome(record: Mapping[str, Any], key: str) -> Outcome | None:
    reward, success = _reward(record.get("reward")), record.get("success")
    if success is not None and not isinstance(success, bool):
        raise ValueError(f"its {key} is {str(success)[:80]!r}, neither true nor false")
    if reward is None and success is None:
        return None
    is_success = success if success is not None else reward == 1
    return Outcome(is_success, is_success, reward=float(is_success) if reward is None else reward)


def _reward(content: Any) -> float | None:
    if content is None:
        return None
    if not isinstance(content, (int, float)):
        raise ValueError(f"its reward is {str(content)[:80]!r}, not a number")
    reward = float(content)
    if not math.isfinite(reward):
        raise ValueError(f"its reward is {reward}; a mean of it says nothing")
    if abs(reward) > MAX_REWARD:
        raise ValueError(f"its reward is {reward:g}, and {MAX_REWARD:g} is the most")
    return reward


def _labels(record: Mapping[str, Any], messages: Sequence[Message]) -> dict[str, str]:
    given = without_nulls(from_json(record.get("labels"), "labels"))
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ValueError("its labels are no object of texts")
    columns = {name: record[name] for name in OWN_LABELS if record.get(name) is not None}
    labels = {**given, **{name: value for name, value in columns.items() if name not in given}}
    if len(labels) > MAX_LABELS:
        raise ValueError(f"it has {len(labels)} labels, and {MAX_LABELS} are the most")
    named = {
        _label(name, "a label's name"): _label(value, f"the label {str(name)[:80]}") for name, value in labels.items()
    }
    if not re.fullmatch(r"[0-9]{1,3}", named.get("difficulty", "0")):
        raise ValueError(f"its difficulty is {named['difficulty'][:80]!r}, not a number from 0 to 999")
    return {"kind": _kind(messages), "language": _language(messages)} | named


def _label(value: Any, what: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_ID_CHARS or _CONTROL.search(value):
        raise ValueError(f"{what} is {str(value)[:80]!r}, not a line of text")
    refuse_halves(value)
    return value


def _entities(record: Mapping[str, Any]) -> tuple[str, ...]:
    listed = record.get("entities") or ()
    if not isinstance(listed, (list, tuple)):
        raise ValueError("its entities are no list of texts")
    return tuple(_label(entity, "an entity") for entity in listed)


def _split(value: Any) -> Any:
    if value is not None and value not in SPLITS:
        raise ValueError(f"its split is {str(value)[:80]!r}, none of {', '.join(SPLITS)}")
    return value or "sft"


def _id(value: Any) -> str:
    """A number is an id too; 0 is one."""
    if value is None:
        return ""
    return _label(value, "its task_id")


def _text(value: Any, what: str) -> str:
    return "" if value is None else _label(value, f"its {what}")


def _integer(value: Any, what: str, *, most: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"its {what} is {str(value)[:80]!r}, not a whole number from 0 to {most}")
    return value


def _opening_id(messages: Sequence[Message], unlearnt: Collection[int]) -> str:
    """16 hex digits of what stands before the agent's first message."""
    listed = [message.to_openai() for message in opening_of(messages, unlearnt)]
    return hashlib.sha256(json.dumps(listed, ensure_ascii=False, sort_keys=True).encode()).hexdigest()[:16]


def _stop_reason(given: Any, messages: Sequence[Message], stop_tools: Collection[str]) -> StopReason:
    """As given, else by the last message; an episode that ends with a stop tool ended by it."""
    if given is not None:
        if given not in tuple(StopReason):
            raise ValueError(f"its stop_reason is {str(given)[:80]!r}, none of {', '.join(StopReason)}")
        return StopReason(given)
    last = messages[-1]
    if last.role != "tool" and not last.tool_calls:
        return StopReason.DONE
    calls = next((message.tool_calls for message in reversed(messages) if message.tool_calls), ())
    return StopReason.STOP_TOOL if any(call.name in stop_tools for call in calls) else StopReason.TURN_LIMIT


def _kind(messages: Sequence[Message]) -> str:
    """By what was done: no call is a decision of timing, one is a selection, more are a plan."""
    num_calls = sum(len(message.tool_calls) for message in messages)
    return "timing_decision" if num_calls == 0 else "tool_selection" if num_calls == 1 else "multi_step_planning"


def _language(messages: Sequence[Message]) -> str:
    """By the user's first message: one Han character makes it Chinese."""
    asked = next((message.content for message in messages if message.role == "user"), "")
    return "zh" if _HAN.search(asked) else "en"
