"""Expectations that a data engineer adds without code: a suite of Great Expectations in its own
format, over a table with a row per demonstration.

A failed expectation of severity `critical`, the default, quarantines the rows that break it, or
stops the run where it is about the whole table; `warning` and `info` are told. The Data Docs are
Great Expectations' own page without what it loads from other hosts, and with no time of the run.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from posttrain.data.schemas import TrajectoryRow, rows_from_table
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import reason

FILE = Path("data/expectations.json")
_REMOTE = re.compile(r'<link[^>]*href="https?:[^>]*>|<script[^>]*src="https?:[^>]*>\s*</script>', re.IGNORECASE)
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{8}T\d{6}\.\d+Z")
_EMPTY = "<!doctype html><title>Data Docs</title><p>data/expectations.json has no expectation.</p>\n"


@dataclass(frozen=True, slots=True)
class Expected:
    """Result of one expectation: `rows` break it, positions in the file; none where it is about
    the whole table, of which `observed` is what was found."""

    name: str
    severity: str
    is_met: bool
    rows: tuple[int, ...]
    observed: str

    @property
    def stops(self) -> bool:
        """True where no row can be set aside to meet it."""
        return self.severity == "critical" and not self.is_met and not self.rows


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The expectations in the file's order, and the page of Data Docs."""

    expected: Sequence[Expected] = ()
    data_docs: str = _EMPTY

    @property
    def broken(self) -> dict[int, list[str]]:
        """Names of the critical expectations that each row breaks."""
        found: dict[int, list[str]] = {}
        for one in self.expected:
            for row in one.rows if one.severity == "critical" and not one.is_met else ():
                found.setdefault(row, []).append(one.name)
        return found


def check_suite(batches: Iterable[pa.Table], file: Path = FILE) -> SuiteResult:
    """Check the rows of `batches` (TRAJECTORIES_SCHEMA) by the suite in `file`. Raises
    ConfigurationError where it is no suite, or an expectation cannot be judged."""
    content = _read(file) if file.exists() else {"expectations": []}
    if not content["expectations"]:
        return SuiteResult()
    import great_expectations as gx
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from great_expectations.render.renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView

    frame = pa.Table.from_pylist([columns_of(row) for batch in batches for row in rows_from_table(batch)]).to_pandas()
    context: Any = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    try:
        given = [{"meta": {}, **one} for one in content["expectations"]]
        suite = context.suites.add(gx.ExpectationSuite(name="demonstrations", expectations=given))
    except Exception as error:  # of many kinds, none of which the package documents
        raise ConfigurationError(f"{file} is no suite of Great Expectations: {reason(str(error))}") from None
    if len(suite.expectations) < len(given):  # those that it does not know are dropped with a line in the log
        known = {str(one.expectation_type) for one in suite.expectations}
        unknown = ", ".join(sorted({str(one["type"]) for one in given} - known))
        raise ConfigurationError(f"{file} is no suite of Great Expectations: it knows no {unknown}")
    asset = context.data_sources.add_pandas("demonstrations").add_dataframe_asset("demonstrations")
    batch = asset.add_batch_definition_whole_dataframe("all")
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name="demonstrations", data=batch, suite=suite)
    )
    results = definition.run(batch_parameters={"dataframe": frame}, result_format={"result_format": "COMPLETE"})
    expected = [_expected(one, file) for one in results.results]
    results.meta["run_id"] = RunIdentifier(run_name="demonstrations", run_time="2000-01-01T00:00:00+00:00")
    page: str = DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(results))
    return SuiteResult(expected, _same_each_time(_REMOTE.sub("", page)))


def _same_each_time(page: str) -> str:
    """The page with numbers for random ids, and without times."""
    numbers: dict[str, str] = {}
    page = _ID.sub(lambda found: numbers.setdefault(found[0], f"id-{len(numbers)}"), page)
    return _TIME.sub("", page)


def columns_of(row: TrajectoryRow) -> dict[str, Any]:
    """The columns that an expectation may name, of one demonstration: docs/your-trajectories.md
    tells what each is."""
    played = row.trajectory
    own = [one for one in played.messages if one.role == "assistant"]
    calls = [call for one in own for call in one.tool_calls]
    asked = next((one.content for one in played.messages if one.role == "user"), "")
    return {
        "task_id": played.task_id,
        "split": row.split,
        "template": row.template,
        "stop_reason": str(played.stop_reason),
        "reward": played.reward,
        "question": asked,
        "answer": played.messages[-1].content if played.messages else "",
        "num_messages": len(played.messages),
        "num_turns": len(own),
        "num_calls": len(calls),
        "num_tools": len(row.tools),
        "num_characters": sum(len(one.content) for one in own),
        "called": ",".join(call.name for call in calls),
        "arguments": "\n".join(call.arguments for call in calls),
        "has_reasoning": row.reasoning is not None,
        **{f"label_{name}": value for name, value in row.labels.items()},
    }


def _expected(result: Any, file: Path) -> Expected:
    config = result.expectation_config
    by_default = f"{config.type}:{config.kwargs.get('column', 'table')}"
    name = str((config.meta or {}).get("name") or by_default)
    told = list((result.exception_info or {}).values())
    if raised := next((one for one in told if isinstance(one, dict) and one.get("raised_exception")), None):
        why = reason(str(raised.get("exception_message")))
        raise ConfigurationError(f"{file}: the expectation {name} cannot be judged: {why}")
    rows = tuple(int(row) for row in result.result.get("unexpected_index_list") or ())
    observed = str(result.result.get("observed_value", ""))[:200]
    return Expected(name, str(config.severity.value), bool(result.success), rows, observed)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("expectations"), list):
        raise ConfigurationError(f"{file} has no list of expectations, as a suite of Great Expectations has")
    return content
