"""Builds a row from one record of any format.

The record's own values are kept or, where out of range, refused: a changed seed, id or reward would
be another record. What it does not say is read off the conversation: the kind from the number of
calls, the language from the script.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from posttrain.data.importing.fields import SCORES, SPELLINGS, Fields, from_json, refuse_lone_surrogates, without_nulls
from posttrain.data.importing.messages import read_messages
from posttrain.data.schemas import (
    TrajectoryRow,
    message_columns,
    trajectories_table,
    trajectory_columns,
    trajectory_from_columns,
)
from posttrain.types import ROLES, Message, Outcome, Split, StopReason, Trajectory, Turn, number

MAX_ID_CHARS = 512
UNKNOWN_TOOLS: tuple[Mapping[str, Any], ...] = ({"type": "unknown"},)  # placeholder until the whole file is read
_OWN_LABELS = ("kind", "language", "difficulty")  # labels that may be columns of their own
_COLUMNS = (
    *("system", "tools", "success", "reward", "task_id", "seed", "stop_reason"),
    *("split", "template", "entities", "labels"),
)
_PLAYED = ("token_ids", "mask", "logprobs", "window_starts", "window_roles", "delegated", "turns", "scores")
_STRUCTURED = (*_PLAYED, "labels", "entities", "outcome")
_PASSED = dict.fromkeys(("true", "pass", "1", "1.0"), True) | dict.fromkeys(("false", "fail", "0", "0.0"), False)
_HAN = re.compile(r"[\u4e00-\u9fff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def row_of(read: Mapping[str, Any], fields: Fields, *, stop_tools: Collection[str]) -> TrajectoryRow:
    """The row of a record: `read` is what its format's reader gave, `messages` at least; any other
    column is taken from the record's own `fields`. Raises ValueError, KeyError, TypeError and the
    like with what is wrong with it."""
    own = {name: fields.take(name) for name in (*_COLUMNS, *_OWN_LABELS)}
    record = {**own, **read, **_grades(read.get("evaluations", {}))}
    told = {"system": record["system"], "tools": record["tools"], "is_verbatim": "turns" in read.get("played", {})}
    parsed = read_messages(record["messages"], unread=fields.unread, **told)
    messages = parsed.messages
    outcome = _outcome(record, fields.key("success"))
    if outcome is not None and record["reward"] is not None:
        fields.unread.update(key for key in SCORES if fields.raw(key) is not None)
    fields.unread.update(f"evaluations: {name}" for name in record.get("grades", {}) if outcome is None)
    fields.close()
    _refuse_unanswered(messages, record)
    task_id = "" if record.get("task_id") is None else _label(record["task_id"], "its task_id")
    trajectory = Trajectory(
        task_id=task_id or opening_id(messages, parsed.untrained),
        messages=messages,
        stop_reason=_stop_reason(record.get("stop_reason"), messages, stop_tools),
        seed=_seed(record.get("seed")),
        reward=None if outcome is None else outcome.reward,
        turns=_turns(messages, parsed.untrained),
        outcome=outcome,
    )
    row = TrajectoryRow(
        trajectory=_as_played(trajectory, read["played"]) if read.get("played") else trajectory,
        labels=_labels(record, messages),
        split=_split(record.get("split")),
        template="imported" if record.get("template") is None else _label(record["template"], "its template"),
        entities=_entities(record),
        tools=UNKNOWN_TOOLS if parsed.tools is None else parsed.tools,
    )
    if read.get("played"):
        trajectories_table([row])  # its types: nobody has read them
    return row


def own_columns(about: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of an episode that `traces export` wrote, in spans as JSON text."""
    told = {key: from_json(value, key) if key in _STRUCTURED else value for key, value in about.items()}
    own = {key: told[key] for key in _COLUMNS if key not in ("success", "reward") and told.get(key) is not None}
    played = {key: told[key] for key in (*_PLAYED, "policy_version", "num_forks", "failure") if key in told}
    return {**own, "played": {**played, "reward": told.get("reward"), "outcome": told.get("outcome")}}


def opening_of(messages: Sequence[Message], untrained: Collection[int] = ()) -> Sequence[Message]:
    """The messages before the first that the agent itself wrote."""
    own = (index for index, one in enumerate(messages) if one.role == "assistant" and index not in untrained)
    return messages[: next(own, len(messages))]


def _refuse_unanswered(messages: Sequence[Message], record: Mapping[str, Any]) -> None:
    """Raises ValueError where the user has the last word and no value says that it ended so."""
    if messages[-1].role in ("user", "system") and record.get("stop_reason") is None and record.get("reward") is None:
        raise ValueError(
            f"its last message is the {messages[-1].role}'s, so nothing shows what the agent should answer: put the "
            "answer behind it, or cut it off"
        )


def _turns(messages: Sequence[Message], untrained: Collection[int]) -> tuple[Turn, ...]:
    """A turn per trained message; none where all messages of the agent are trained on."""
    if not untrained:
        return ()
    trained = [index for index, one in enumerate(messages) if one.role == "assistant" and index not in untrained]
    if not trained:
        raise ValueError("none of its messages is to be trained on")
    return tuple(Turn(num_read=0, num_written=0, policy_version=0, message_index=index) for index in trained)


def _outcome(record: Mapping[str, Any], key: str) -> Outcome | None:
    reward, success = record.get("reward"), record.get("success")
    reward = None if reward is None else number(reward, "its reward")
    if success is not None and not isinstance(success, bool):
        raise ValueError(f"its {key} is {str(success)[:80]!r}, neither true nor false")
    if reward is None and success is None:
        return None
    is_success = success if success is not None else reward == 1
    scores = {name: number(value, f"its {name}", low=0, high=1) for name, value in record.get("grades", {}).items()}
    return Outcome(is_success, is_success, scores, float(is_success) if reward is None else reward)


def _grades(evaluations: Mapping[str, Any]) -> dict[str, Any]:
    """`success` in any spelling, `reward`, and what else was evaluated as `grades`."""
    names, given = SPELLINGS["record"]["success"], {key: one for key, one in evaluations.items() if one is not None}
    found = [_PASSED.get(str(given[name]).lower(), given[name]) for name in names if name in given]
    if len(set(found)) > 1:
        raise ValueError("it is evaluated as a success and as none")
    known = {"success": found[0]} if found else {}
    known |= {"reward": given["reward"]} if "reward" in given else {}
    return {**known, "grades": {key: one for key, one in given.items() if key not in ("reward", *names)}}


def _as_played(trajectory: Trajectory, played: Mapping[str, Any]) -> Trajectory:
    """With the tokens, turns and grades that an export tells; without the feedback, which may tell
    the goal. Raises ValueError for what cannot be."""
    found = trajectory_from_columns({**trajectory_columns(trajectory), **played})
    if len({*map(len, (found.token_ids, found.mask, found.logprobs))}) > 1 or set(found.mask) - {0, 1}:
        raise ValueError("its token ids, mask and log-probabilities do not fit each other")
    if {*found.window_roles} - {*ROLES} or len(found.roles) != 1 + len(found.window_starts):
        raise ValueError("its window_roles do not name a role for each of its windows")
    for value in (*found.scores.values(), *found.logprobs, found.reward or 0.0):
        number(value, "one of its scores or log-probabilities")
    return replace(found, outcome=found.outcome and replace(found.outcome, feedback=""))


def _labels(record: Mapping[str, Any], messages: Sequence[Message]) -> dict[str, str]:
    given = without_nulls(from_json(record.get("labels"), "labels"))
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ValueError("its labels are no object of texts")
    columns = {name: record[name] for name in _OWN_LABELS if record.get(name) is not None}
    labels = {**given, **{name: value for name, value in columns.items() if name not in given}}
    named = {_label(name, "a label's name"): _label(labels[name], f"the label {str(name)[:80]}") for name in labels}
    if not re.fullmatch(r"[0-9]{1,3}", named.get("difficulty", "0")):
        raise ValueError(f"its difficulty is {named['difficulty'][:80]!r}, not a number from 0 to 999")
    return {"kind": _kind(messages), "language": _language(messages)} | named


def _label(value: Any, what: str) -> str:
    """A line of text, or a number as text. Raises ValueError that names it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_ID_CHARS or _CONTROL.search(value):
        raise ValueError(f"{what} is {str(value)[:80]!r}, not a line of text")
    refuse_lone_surrogates(value)
    return value


def _entities(record: Mapping[str, Any]) -> tuple[str, ...]:
    entities = record.get("entities") or ()
    if not isinstance(entities, (list, tuple)):
        raise ValueError("its entities are no list of texts")
    return tuple(_label(entity, "an entity") for entity in entities)


def _split(value: Any) -> Any:
    if value is not None and value not in get_args(Split):
        raise ValueError(f"its split is {str(value)[:80]!r}, none of {', '.join(get_args(Split))}")
    return value or "sft"


def _seed(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"its seed is {str(value)[:80]!r}, not a whole number from 0 to {2**63 - 1}")
    return value


def opening_id(messages: Sequence[Message], untrained: Collection[int]) -> str:
    """16 hex digits of the messages before the agent's first: one opening, one task."""
    text = json.dumps(message_columns(opening_of(messages, untrained)), ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stop_reason(given: Any, messages: Sequence[Message], stop_tools: Collection[str]) -> StopReason:
    """The given reason, else the one that the last message shows."""
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
    """No call is a decision of timing, one is a selection, more are a plan."""
    num_calls = sum(len(message.tool_calls) for message in messages)
    return "timing_decision" if num_calls == 0 else "tool_selection" if num_calls == 1 else "multi_step_planning"


def _language(messages: Sequence[Message]) -> str:
    """One Han character in the user's first message makes it Chinese."""
    first = next((message.content for message in messages if message.role == "user"), "")
    return "zh" if _HAN.search(first) else "en"
