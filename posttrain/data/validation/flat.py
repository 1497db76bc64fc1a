"""Flattens nested trajectories into three Arrow tables, with a row per trajectory, turn and call,
without a Python loop over rows.

A turn is one agent message with the tool results it caused, so every rule has a table of its
granularity. Every row keeps `row`, the position of its trajectory in the batch: ids may be what is
wrong, positions cannot. The order of the roles has a place in no table; it is checked here, on the
messages, and kept as a column of the trajectory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_ENDS_WITH_CALL = ("stop_tool", "world_over")  # stop reasons with which a last call needs no result
# A token of the length estimate: up to four letters or any other visible character, about as in a
# small byte-level vocabulary with single digits and Han characters
_TOKEN = r"[A-Za-z]{1,4}|[^A-Za-z\s]"

_START, _SYSTEM, _USER, _TEXT, _CALLS, _TOOL, _UNKNOWN = range(7)
_MAY_FOLLOW = {
    _START: (_SYSTEM, _USER),  # a template needs something to read before the agent speaks
    _SYSTEM: (_USER, _TEXT),
    _USER: (_TEXT, _CALLS),
    _TEXT: (_USER,),
    _CALLS: (_TOOL,),
    _TOOL: (_TOOL, _USER, _TEXT, _CALLS),
    _UNKNOWN: (),
}


TableName = Literal["trajectories", "turns", "calls"]
FlatTables = Mapping[TableName, pa.Table]


def flatten(rows: pa.Table) -> FlatTables:
    """Tables of the values and checks that rules read, of a batch of TRAJECTORIES_SCHEMA, with the
    position of each row: `row` is the trajectory in the batch, `turn` the agent's turn in it, both
    from 0.

    trajectories: row, split, stop_reason, tokens_estimate, roles_alternate. turns: row, turn,
    says_something, results_are_asked_for. calls: row, turn, name, arguments, is_answered,
    is_id_unique.
    """
    messages = _Messages(rows)
    calls = _calls(messages)
    is_answered, is_id_unique, is_asked_for = _pair(messages, calls)
    is_answered |= _ends_the_episode(calls, rows)
    agent_ids = np.flatnonzero(messages.is_agent)
    turn_rows = messages.rows[agent_ids]
    has_text = bool_array(pc.not_equal(pc.utf8_trim_whitespace(messages.text("content")), ""))[agent_ids]
    has_calls = np.bincount(calls.turn_ids, minlength=len(agent_ids)) > 0
    trajectories = {
        "row": np.arange(rows.num_rows),
        **{name: pc.fill_null(rows[name], "") for name in ("split", "stop_reason")},
        "tokens_estimate": _tokens_estimate(messages, calls, rows.num_rows),
        "roles_alternate": _roles_alternate(messages, rows.num_rows),
    }
    turns = {
        "row": turn_rows,
        "turn": np.arange(len(turn_rows)) - np.searchsorted(turn_rows, turn_rows),
        "says_something": has_text | has_calls,
        "results_are_asked_for": is_asked_for,
    }
    with_checks = with_columns(calls.table, is_answered=is_answered, is_id_unique=is_id_unique)
    return {"trajectories": pa.table(trajectories), "turns": pa.table(turns), "calls": with_checks}


class _Messages:
    """All messages of the batch in one struct array, with the trajectory (`rows`) and the turn
    (`turn_ids`, counted over the batch, -1 before the first) of each."""

    def __init__(self, table: pa.Table) -> None:
        lists = table["messages"].combine_chunks()
        self.structs: Any = pc.list_flatten(lists)
        self.rows: NDArray[np.int64] = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        self.role = pc.fill_null(self.structs.field("role"), "")
        self.is_agent: NDArray[np.bool_] = bool_array(pc.equal(self.role, "assistant"))
        self.is_tool: NDArray[np.bool_] = bool_array(pc.equal(self.role, "tool"))
        # a turn begins with each agent message; what precedes a trajectory's first has none
        turn_ids = np.cumsum(self.is_agent) - 1
        agent_rows = self.rows[self.is_agent]
        in_own_row = (
            (turn_ids >= 0) & (agent_rows[turn_ids] == self.rows) if len(agent_rows) else np.zeros(len(self.rows), bool)
        )
        self.turn_ids: NDArray[np.int64] = np.where(in_own_row, turn_ids, -1)

    def text(self, name: str) -> Any:
        return pc.fill_null(self.structs.field(name), "")


@dataclass(frozen=True, slots=True)
class _Calls:
    """The agents' calls: the message, trajectory and turn of each, counted over the batch."""

    message_ids: NDArray[np.int64]
    rows: NDArray[np.int64]
    turn_ids: NDArray[np.int64]
    ids: Any
    table: pa.Table


def _calls(messages: _Messages) -> _Calls:
    lists = messages.structs.field("tool_calls")
    message_ids = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    by_agent = messages.is_agent[message_ids]
    structs, message_ids = pc.list_flatten(lists).filter(pa.array(by_agent)), message_ids[by_agent]
    rows, turn_ids = messages.rows[message_ids], messages.turn_ids[message_ids]
    first_turn = np.searchsorted(messages.rows[messages.is_agent], rows)
    function = structs.field("function")
    texts = {name: pc.fill_null(function.field(name), "") for name in ("name", "arguments")}
    table = pa.table({"row": rows, "turn": turn_ids - first_turn, **texts})
    return _Calls(message_ids, rows, turn_ids, pc.fill_null(structs.field("id"), ""), table)


def _pair(messages: _Messages, calls: _Calls) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Pair calls and results by turn and id. Of calls: answered by exactly one result of their
    turn; with an id that no other call of the trajectory has. Of turns: no result without a call.
    """
    result_messages = np.flatnonzero(messages.is_tool & (messages.turn_ids >= 0))
    result_turns = messages.turn_ids[result_messages]
    result_ids = messages.text("tool_call_id").take(pa.array(result_messages))
    encoded = pa.concat_arrays([calls.ids, result_ids]).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    # (turn, id) as one number, so that NumPy can sort and search pairs
    width = int(codes.max(initial=0)) + 1
    call_codes, result_codes = codes[: len(calls.rows)], codes[len(calls.rows) :]
    call_keys, result_keys = calls.turn_ids * width + call_codes, result_turns * width + result_codes
    keys, counts = np.unique(result_keys, return_counts=True)
    place = np.minimum(np.searchsorted(keys, call_keys), max(len(keys) - 1, 0))
    is_answered = (keys[place] == call_keys) & (counts[place] == 1) if len(keys) else np.zeros(len(call_keys), bool)
    _, inverse, uses = np.unique(calls.rows * width + call_codes, return_inverse=True, return_counts=True)
    has_id = bool_array(pc.not_equal(calls.ids, ""))
    unasked = result_turns[~np.isin(result_keys, call_keys)]
    is_asked_for = np.bincount(unasked, minlength=int(messages.is_agent.sum())) == 0
    return is_answered, (uses[inverse] == 1) & has_id, is_asked_for


def _ends_the_episode(calls: _Calls, table: pa.Table) -> NDArray[np.bool_]:
    """Shape (C,): the call is in the last message and ended the episode, so it needs no result."""
    lengths = pc.fill_null(pc.list_value_length(table["messages"].combine_chunks()), 0).to_numpy(zero_copy_only=False)
    last = np.cumsum(lengths) - 1
    is_over = bool_array(pc.is_in(table["stop_reason"].combine_chunks(), pa.array(_ENDS_WITH_CALL)))
    ends: NDArray[np.bool_] = is_over[calls.rows] & (calls.message_ids == last[calls.rows])
    return ends


def _roles_alternate(messages: _Messages, num_rows: int) -> NDArray[np.bool_]:
    """Shape (N,). One optional system message, after which the agent may greet; then the user and
    the agent take turns; results come after a message with calls, and only there."""
    state = np.full(len(messages.rows), _UNKNOWN)
    state[bool_array(pc.equal(messages.role, "system"))] = _SYSTEM
    state[bool_array(pc.equal(messages.role, "user"))] = _USER
    state[messages.is_tool] = _TOOL
    has_calls = bool_array(pc.greater(pc.fill_null(pc.list_value_length(messages.structs.field("tool_calls")), 0), 0))
    state[messages.is_agent] = np.where(has_calls[messages.is_agent], _CALLS, _TEXT)
    allowed = np.zeros((7, 7), bool)
    for before, after in _MAY_FOLLOW.items():
        allowed[before, list(after)] = True
    # a transition table over all messages at once; a trajectory's first message follows _START
    previous = np.roll(state, 1)
    previous[np.diff(messages.rows, prepend=-1) != 0] = _START
    broken = np.bincount(messages.rows[~allowed[previous, state]], minlength=num_rows) > 0
    has_agent = np.bincount(messages.rows[messages.is_agent], minlength=num_rows) > 0
    has_user = np.bincount(messages.rows[state == _USER], minlength=num_rows) > 0
    return has_agent & has_user & ~broken


def _tokens_estimate(messages: _Messages, calls: _Calls, num_rows: int) -> NDArray[np.int64]:
    """Tokens of users, agent and tools, shape (N,). System messages are left out: their cost
    depends on the model's chat template."""
    is_counted = ~bool_array(pc.equal(messages.role, "system"))
    of_message = _num_tokens(messages.text("content")) + _num_tokens(messages.text("reasoning_content"))
    of_call = _num_tokens(calls.table["name"].combine_chunks()) + _num_tokens(calls.table["arguments"].combine_chunks())
    total = np.bincount(messages.rows[is_counted], weights=of_message[is_counted], minlength=num_rows)
    total += np.bincount(calls.rows, weights=of_call, minlength=num_rows)
    return total.astype(np.int64)


def _num_tokens(texts: Any) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = pc.count_substring_regex(texts, _TOKEN).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)


def with_columns(table: pa.Table, **columns: NDArray[np.bool_]) -> pa.Table:
    """The table with further columns of booleans."""
    for name, values in columns.items():
        table = table.append_column(name, [values])
    return table


def bool_array(values: Any) -> NDArray[np.bool_]:
    """A boolean Arrow array as NumPy's; null is False."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    mask: NDArray[np.bool_] = pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(bool)
    return mask
