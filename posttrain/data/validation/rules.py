"""Rules for a demonstration, run as Great Expectations suites, one per flat table: each rule is a
column of a table and a check that Great Expectations knows.

Whatever needs more than one value (pairs, order, duplicates, leaks) is computed beforehand as a
boolean column; a set or a limit is checked on the value itself. The context lives in memory and
telemetry is off. Results are SUMMARY, because COMPLETE lists every failing row and takes half a
minute for a million of them; Arrow finds which trajectories broke a rule. Making the suites takes
seconds and running them a twentieth of one, so they are made once for all batches.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from posttrain.data.validation.calls import check_calls
from posttrain.data.validation.conversations import conversation_digests, digests, has_no_special_tokens, is_first
from posttrain.data.validation.flat import FlatTables, TableName, bool_array, flatten, with_columns
from posttrain.data.validation.leakage import HeldOut, check_leaks
from posttrain.types import Split, StopReason


@dataclass(frozen=True, slots=True)
class Rule:
    """`column` of `table` is true, or one of `values`, or at most `limit`: exactly one of the
    three. `meaning` completes "every row …"."""

    table: TableName
    name: str
    column: str
    meaning: str
    values: tuple[str, ...] = ()
    limit: int | None = None


def rules(*, max_tokens: int) -> tuple[Rule, ...]:
    """All rules, in the order in which reasons are given."""
    row, turn, call = (partial(Rule, table) for table in ("trajectories", "turns", "calls"))
    roles = "alternates: user, agent (who may begin), and results only after calls"
    length = f"has at most {max_tokens} tokens by estimate"
    answered = "is answered by exactly one result that bears its id, or ended the episode"
    return (
        row("unique_id", "is_first_id", "has an id that no earlier trajectory has"),
        row("no_duplicate", "is_first_conversation", "is a conversation that no earlier trajectory is"),
        row("known_split", "split", "belongs to a known split", values=get_args(Split)),
        row("known_stop_reason", "stop_reason", "ended for a known reason", values=tuple(StopReason)),
        row("roles_alternate", "roles_alternate", roles),
        row("length_limit", "tokens_estimate", length, limit=max_tokens),
        row("tools_have_schemas", "has_schemas", "offers tools with a name and a JSON schema each"),
        row("no_held_out_task", "is_new_task", "is of a task that is not held out for dev or test"),
        row("no_held_out_text", "is_new_text", "opens with words that no held-out task opens with"),
        row("no_held_out_entity", "has_new_entities", "is about nothing of a held-out task's"),
        row("no_control_marks", "is_free_of_marks", "has an agent that writes no control mark of a chat"),
        turn("says_something", "says_something", "has text or a call"),
        turn("results_asked_for", "results_are_asked_for", "is followed only by results of its own calls"),
        call("call_answered", "is_answered", answered),
        call("unique_call_id", "is_id_unique", "has an id that no other call of the trajectory has"),
        call("tool_offered", "is_offered", "names a tool that the trajectory was offered"),
        call("arguments_parse", "arguments_parse", "has a JSON object as arguments"),
        call("arguments_fit", "arguments_fit", "has arguments that fit the tool's schema"),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """Hashes of the ids and the conversations of all batches so far, 16 bytes each."""

    ids: set[bytes] = field(default_factory=set)
    conversations: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """The flat tables of a batch with the columns that depend on the batch alone, the hashes of its
    ids and conversations, and how often each set of labels occurs."""

    flat: FlatTables
    ids: list[bytes]
    conversations: list[bytes]
    labels: Counter[str]

    def after(self, seen: Seen) -> FlatTables:
        """The flat tables with every column that a rule reads; the batch is added to `seen`."""
        is_first_one = {
            "is_first_id": is_first(self.ids, seen.ids),
            "is_first_conversation": is_first(self.conversations, seen.conversations),
        }
        return {**self.flat, "trajectories": with_columns(self.flat["trajectories"], **is_first_one)}


def check_batch(held_out: HeldOut, rows: pa.Table) -> CheckedBatch:
    """Check a batch of TRAJECTORIES_SCHEMA by itself."""
    rows = rows.combine_chunks()
    flat = flatten(rows)
    has_schemas, of_calls = check_calls(rows, flat["calls"])
    of_trajectories = {
        "has_schemas": has_schemas,
        "is_free_of_marks": has_no_special_tokens(rows),
        **check_leaks(rows, held_out),
    }
    tables: FlatTables = {
        "trajectories": with_columns(flat["trajectories"], **of_trajectories),
        "turns": flat["turns"],
        "calls": with_columns(flat["calls"], **of_calls),
    }
    labels = Counter(rows["labels"].to_pylist())
    return CheckedBatch(tables, digests(rows["trajectory_id"]), conversation_digests(rows), labels)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Counts of one rule: rows of its table, rows that broke it, and their trajectories."""

    rule: Rule
    expectation: str
    num_rows: int
    num_broken: int
    num_trajectories: int

    def __add__(self, other: "RuleResult") -> "RuleResult":
        """The sum over two batches, which share no trajectory."""
        return RuleResult(
            self.rule,
            self.expectation,
            self.num_rows + other.num_rows,
            self.num_broken + other.num_broken,
            self.num_trajectories + other.num_trajectories,
        )


def make_expectations(rules: Sequence[Rule]) -> Callable[[FlatTables], list[RuleResult]]:
    """A function that checks a batch; its results are in the order of `rules`."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"  # read when the package is imported
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context: Any = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_pandas("flat_tables")
    tables: tuple[TableName, ...] = ("trajectories", "turns", "calls")
    definitions: dict[TableName, Any] = {}
    for name in tables:
        mine = [rule for rule in rules if rule.table == name]
        suite = context.suites.add(
            gx.ExpectationSuite(name=name, expectations=[_expectation(gx, rule) for rule in mine])
        )
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
        definitions[name] = context.validation_definitions.add(
            gx.ValidationDefinition(name=name, data=batch, suite=suite)
        )

    def check(flat: FlatTables) -> list[RuleResult]:
        results: dict[str, Any] = {}
        for name, definition in definitions.items():
            columns = sorted({rule.column for rule in rules if rule.table == name})
            frame = flat[name].select(columns).to_pandas()
            found = definition.run(batch_parameters={"dataframe": frame}, result_format="SUMMARY")
            results |= {result.expectation_config.meta["rule"]: result for result in found.results}
        return [_result(rule, flat, results[rule.name]) for rule in rules]

    return check


def broken(rule: Rule, flat: FlatTables) -> pa.Table:
    """Positions of the rows of its table that break the rule: `row`, and `turn` of finer tables."""
    table = flat[rule.table]
    found = table.filter(pa.array(~_passes(rule, table[rule.column])))
    return found.select([name for name in ("row", "turn") if name in found.column_names])


def _passes(rule: Rule, column: pa.ChunkedArray) -> NDArray[np.bool_]:
    passes: Any = column
    if rule.values:
        passes = pc.is_in(column, pa.array([str(value) for value in rule.values]))
    elif rule.limit is not None:
        passes = pc.less_equal(column, rule.limit)
    return bool_array(passes)


def _expectation(gx: Any, rule: Rule) -> Any:
    meta = {"rule": rule.name}
    if rule.limit is not None:
        return gx.expectations.ExpectColumnValuesToBeBetween(column=rule.column, max_value=rule.limit, meta=meta)
    values: list[str] | list[bool] = [str(value) for value in rule.values] or [True]
    return gx.expectations.ExpectColumnValuesToBeInSet(column=rule.column, value_set=values, meta=meta)


def _result(rule: Rule, flat: FlatTables, result: Any) -> RuleResult:
    return RuleResult(
        rule,
        str(result.expectation_config.type),
        flat[rule.table].num_rows,
        int(result.result.get("unexpected_count", 0)),  # absent where the table is empty
        pc.count_distinct(broken(rule, flat)["row"]).as_py(),
    )
