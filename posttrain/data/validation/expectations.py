"""Runs the rules as Great Expectations suites, one per flat table.

The context lives in memory and telemetry is off. Results are SUMMARY, because COMPLETE lists every
failing row and takes half a minute for a million of them; Arrow finds which trajectories broke a
rule, and the two counts must agree. Making the suites takes seconds and running them a twentieth of
one, so they are made once for all batches.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from posttrain.data.validation.rules import FlatChecks, Rule, TableName, broken


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Counts of one rule: rows of its table, rows that broke it, and their trajectories."""

    rule: Rule
    expectation: str
    num_rows: int
    num_broken: int
    num_trajectories: int


def make_expectations(rules: Sequence[Rule]) -> Callable[[FlatChecks], list[RuleResult]]:
    """A function that checks a batch, in the order of `rules`. It raises RuntimeError where Great
    Expectations and Arrow count differently: our bug, not the data's."""
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

    def check(flat: FlatChecks) -> list[RuleResult]:
        results: dict[str, Any] = {}
        for name, definition in definitions.items():
            columns = sorted({rule.column for rule in rules if rule.table == name})
            frame = flat[name].select(columns).to_pandas()
            found = definition.run(batch_parameters={"dataframe": frame}, result_format="SUMMARY")
            results |= {result.expectation_config.meta["rule"]: result for result in found.results}
        return [_result(rule, flat, results[rule.name]) for rule in rules]

    return check


def add_results(batches: Sequence[Sequence[RuleResult]]) -> list[RuleResult]:
    """The sums over one or more batches, which share no trajectory."""
    return [
        replace(
            of_rule[0],
            num_rows=sum(one.num_rows for one in of_rule),
            num_broken=sum(one.num_broken for one in of_rule),
            num_trajectories=sum(one.num_trajectories for one in of_rule),
        )
        for of_rule in zip(*batches, strict=True)
    ]


def _expectation(gx: Any, rule: Rule) -> Any:
    meta = {"rule": rule.name}
    if rule.limit is not None:
        return gx.expectations.ExpectColumnValuesToBeBetween(column=rule.column, max_value=rule.limit, meta=meta)
    values: list[str] | list[bool] = [str(value) for value in rule.values] or [True]
    return gx.expectations.ExpectColumnValuesToBeInSet(column=rule.column, value_set=values, meta=meta)


def _result(rule: Rule, flat: FlatChecks, result: Any) -> RuleResult:
    found = broken(rule, flat)
    num_broken = int(result.result.get("unexpected_count", 0))  # absent where the table is empty
    if num_broken != found.num_rows or bool(result.success) != (num_broken == 0):
        raise RuntimeError(
            f"rule {rule.name}: Great Expectations found {num_broken} broken rows of {rule.table}, "
            f"Arrow {found.num_rows}"
        )
    return RuleResult(
        rule,
        str(result.expectation_config.type),
        flat[rule.table].num_rows,
        num_broken,
        pc.count_distinct(found["row"]).as_py(),
    )
