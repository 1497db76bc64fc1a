"""What a demonstration must be, one rule a line, and which rows of which flat table break it.

A rule is a column and a check that Great Expectations knows. What needs more than one row to judge
(pairs, order, duplicates, leaks) is a boolean column computed beforehand; what one value decides (a
set, a limit) is checked on the value itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from posttrain.data.validation.agent_marks import is_free_of_marks
from posttrain.data.validation.arguments import judge_calls
from posttrain.data.validation.duplicates import conversation_digests, digests, is_first
from posttrain.data.validation.flat import flatten
from posttrain.data.validation.inline_tools import is_told
from posttrain.data.validation.leakage import HeldOut, judge_leaks
from posttrain.types import SPLITS, StopReason

TableName = Literal["trajectories", "turns", "calls"]
Judged = Mapping[TableName, pa.Table]


@dataclass(frozen=True, slots=True)
class Rule:
    """`column` of `table` is true, or one of `values`, or at most `limit`: exactly one of the
    three. `meaning` completes "every row …"."""

    name: str
    table: TableName
    column: str
    meaning: str
    values: tuple[str, ...] = ()
    limit: int | None = None


def rules(*, max_tokens: int) -> tuple[Rule, ...]:
    """All rules, in the order in which reasons are given."""
    return (
        Rule("unique_id", "trajectories", "is_first_id", "has an id that no earlier trajectory has"),
        Rule(
            "no_duplicate", "trajectories", "is_first_conversation", "is a conversation that no earlier trajectory is"
        ),
        Rule("known_split", "trajectories", "split", "belongs to a known split", values=SPLITS),
        Rule("known_stop_reason", "trajectories", "stop_reason", "ended for a known reason", values=tuple(StopReason)),
        Rule(
            "roles_alternate",
            "trajectories",
            "roles_alternate",
            "alternates: user, agent (who may begin), and results only after calls",
        ),
        Rule(
            "length_limit",
            "trajectories",
            "tokens_estimate",
            f"has at most {max_tokens} tokens by estimate",
            limit=max_tokens,
        ),
        Rule("tools_have_schemas", "trajectories", "has_schemas", "offers tools with a name and a JSON schema each"),
        Rule("no_held_out_task", "trajectories", "is_new_task", "is of a task that is not held out for dev or test"),
        Rule("no_held_out_text", "trajectories", "is_new_text", "opens with words that no held-out task opens with"),
        Rule("no_held_out_entity", "trajectories", "has_new_entities", "is about nothing of a held-out task's"),
        Rule(
            "no_control_marks", "trajectories", "is_free_of_marks", "has an agent that writes no control mark of a chat"
        ),
        Rule("says_something", "turns", "says_something", "has text or a call"),
        Rule("results_asked_for", "turns", "results_are_asked_for", "is followed only by results of its own calls"),
        Rule(
            "call_answered",
            "calls",
            "is_answered",
            "is answered by exactly one result that bears its id, or ended the episode",
        ),
        Rule("unique_call_id", "calls", "is_id_unique", "has an id that no other call of the trajectory has"),
        Rule("tool_offered", "calls", "is_offered", "names a tool that the trajectory was offered"),
        Rule("arguments_parse", "calls", "arguments_parse", "has a JSON object as arguments"),
        Rule("arguments_fit", "calls", "arguments_fit", "has arguments that fit the tool's schema"),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """The ids and the conversations of all batches so far, 16 bytes each."""

    ids: set[bytes] = field(default_factory=set)
    conversations: set[bytes] = field(default_factory=set)


def judge(rows: pa.Table, held_out: HeldOut, seen: Seen) -> Judged:
    """The flat tables of a batch of TRAJECTORIES_SCHEMA with every column that a rule reads; `seen`
    takes the batch in."""
    rows = rows.combine_chunks()
    flat = flatten(rows)
    calls = judge_calls(flat.calls, rows["tools"])
    leaks = judge_leaks(rows, held_out)
    is_offered = calls.is_offered | is_told(rows, flat.calls, ~calls.is_offered)
    return {
        "trajectories": _with_columns(
            flat.trajectories,
            is_first_id=is_first(digests(rows["trajectory_id"]), seen.ids),
            is_first_conversation=is_first(conversation_digests(rows), seen.conversations),
            has_schemas=calls.has_schemas,
            is_free_of_marks=is_free_of_marks(rows),
            is_new_task=leaks.is_new_task,
            is_new_text=leaks.is_new_text,
            has_new_entities=leaks.has_new_entities,
        ),
        "turns": flat.turns,
        "calls": _with_columns(
            flat.calls, is_offered=is_offered, arguments_parse=calls.parses, arguments_fit=calls.fits_schema
        ),
    }


def broken(rule: Rule, judged: Judged) -> pa.Table:
    """The rows of the rule's table that break it, with `row` (and `turn`, where the table is finer
    than a trajectory)."""
    table = judged[rule.table]
    found = table.filter(pa.array(~_passes(rule, table[rule.column])))
    return found.select([name for name in ("row", "turn") if name in found.column_names])


def _passes(rule: Rule, column: pa.ChunkedArray) -> NDArray[np.bool_]:
    passes: Any = column
    if rule.values:
        passes = pc.is_in(column, pa.array([str(value) for value in rule.values]))
    elif rule.limit is not None:
        passes = pc.less_equal(column, rule.limit)
    mask: NDArray[np.bool_] = passes.to_numpy().astype(bool)
    return mask


def _with_columns(table: pa.Table, **columns: Sequence[bool] | NDArray[np.bool_]) -> pa.Table:
    for name, values in columns.items():
        table = table.append_column(name, [values])
    return table
