"""Runs the rules as Great Expectations suites, one per flat table.

The context lives in memory and telemetry is off. Results are SUMMARY, because COMPLETE lists every
failing row and takes half a minute for a million of them; Arrow finds which trajectories broke a
rule. Making the suites takes seconds and running them a twentieth of one, so they are made once for
all batches.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from posttrain.data.validation.flat import FlatTables, TableName
from posttrain.data.validation.rules import Rule, broken


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
