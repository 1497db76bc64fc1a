"""Expectations that a person adds to data/expectations.json: which rows they set aside, what stops
the run, and the pages."""

import json
import re

import pytest

from posttrain.data.schemas import TASKS_SCHEMA, TrajectoryRow, trajectories_table
from posttrain.data.validation.leakage import TASK_COLUMNS
from posttrain.data.validation.page import render_page
from posttrain.data.validation.suite import check_suite
from posttrain.data.validation.validate import refuse_too_many, summary, validate
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.types import Message, StopReason, ToolCall, Trajectory

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def row(number, *, answer="19.6", num_calls=1, question="What is it?", reasoning=None, labels=None, template="plain"):
    calls = [
        message
        for call in range(num_calls)
        for message in (
            Message("assistant", "", tool_calls=(ToolCall(f"c{call}", "look", "{}"),), reasoning_content=reasoning),
            Message("tool", f"{number} {call}", tool_call_id=f"c{call}"),
        )
    ]
    messages = (Message("user", f"{question} {number}"), *calls, Message("assistant", answer))
    told = {"kind": "a", "language": "en", **(labels or {})}
    return TrajectoryRow(Trajectory(f"t{number}", messages, StopReason.DONE), told, "sft", template, (), (TOOL,))


ROWS = [
    row(0),
    row(1, num_calls=0),
    row(2, answer="As an AI model I cannot"),
    row(3, num_calls=5),
    row(4, labels={"kind": "b"}),
    row(5, answer="x" * 500),
    row(6, reasoning="because"),
    row(7, template=""),
    row(8, question="你好"),
    row(9, answer="19.6 "),
]


def between(column, low=None, high=None):
    kwargs = {"column": column, "min_value": low, "max_value": high}
    return {"type": "expect_column_values_to_be_between", "kwargs": {k: v for k, v in kwargs.items() if v is not None}}


def of(kind, column, **kwargs):
    return {"type": f"expect_column_values_to_{kind}", "kwargs": {"column": column, **kwargs}}


TEN = {  # as a data engineer would add them, each with the rows that break it
    "calls something": (between("num_calls", low=1), [1]),
    "few calls": (between("num_calls", high=4), [3]),
    "no disclaimer": (of("not_match_regex", "answer", regex="(?i)as an ai"), [2]),
    "known kinds": (of("be_in_set", "label_kind", value_set=["a"]), [4]),
    "short answers": (of("match_regex", "answer", regex="^.{0,200}$"), [5]),
    "no reasoning": (of("be_in_set", "has_reasoning", value_set=[False]), [6]),
    "a template": (of("match_regex", "template", regex=".+"), [7]),
    "questions in English": (of("match_regex", "question", regex="^[\\x00-\\x7f]+$"), [8]),
    "trimmed answers": (of("not_match_regex", "answer", regex="\\s$"), [9]),
    "agent writes little": (between("num_characters", high=400), [5]),
}


@pytest.fixture
def checked(tmp_path):
    def checked(*expectations, rows=ROWS):
        file = tmp_path / "expectations.json"
        file.write_text(json.dumps({"name": "ours", "expectations": expectations}))
        table = trajectories_table(rows)
        suite = check_suite([table.slice(0, 4), table.slice(4)], file)
        tasks = [TASKS_SCHEMA.empty_table().select(list(TASK_COLUMNS))]
        return validate([table], tasks, max_tokens=10_000, source=file, suite=suite)

    return checked


def test_ten_expectations_that_a_person_adds_set_aside_the_right_rows(checked):
    result = checked(*({**given, "meta": {"name": name}} for name, (given, _) in TEN.items()))
    expected = {}
    for name, (_, rows) in TEN.items():
        for place in rows:
            expected.setdefault(place, []).append(name)
    assert {place: [one.rule for one in reasons] for place, reasons in result.reasons.items()} == expected
    assert result.is_kept.tolist() == [place not in expected for place in range(len(ROWS))]


def test_a_warning_is_told_and_sets_nothing_aside(checked):
    given, _ = TEN["few calls"]
    result = checked({**given, "severity": "warning"})
    assert result.is_kept.all()
    assert summary(result)["expectations_not_met"] == {"expect_column_values_to_be_between:num_calls": "warning"}
    page = render_page(result, [trajectories_table(ROWS)], max_quarantine_frac=0.1)
    assert "not met" in page
    assert 'href="data_docs.html"' in page


def test_an_expectation_about_the_whole_table_stops_the_run(checked, tmp_path):
    few = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 100}, "meta": {"name": "enough"}}
    with pytest.raises(DataError, match=r"enough \(10\)"):
        refuse_too_many(checked(few), max_quarantine_frac=0.5, source=tmp_path)
    refuse_too_many(checked({**few, "severity": "info"}), max_quarantine_frac=0.5, source=tmp_path)


def test_mostly_is_met_and_then_no_row_is_bad(checked):
    given = between("num_calls", low=1)
    assert checked({**given, "kwargs": {**given["kwargs"], "mostly": 0.8}}).is_kept.all()


def test_data_docs_open_offline_and_are_the_same_for_the_same_data(checked):
    given = [one for one, _ in TEN.values()]
    page = checked(*given).suite.data_docs
    assert "expect" in page.lower() or "must" in page
    assert re.findall(r'(?:src|href)="https?://[^"]*\.(?:js|css)', page) == []
    assert "num_calls" in page
    assert page == checked(*given).suite.data_docs
    assert "has no expectation" in checked().suite.data_docs


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[", "cannot be read as JSON"),
        ("[]", "no list of expectations"),
        ('{"expectations": [{"type": "expect_nothing", "kwargs": {}}]}', "no suite of Great Expectations"),
        ('{"expectations": [3]}', "no suite of Great Expectations"),
        (json.dumps({"expectations": [between("num_cals", low=1)]}), "num_cals.* cannot be judged"),
    ],
)
def test_what_is_no_suite_is_refused_with_its_file(tmp_path, content, why):
    (tmp_path / "e.json").write_text(content)
    with pytest.raises(ConfigurationError, match=why):
        check_suite([trajectories_table(ROWS)], tmp_path / "e.json")
