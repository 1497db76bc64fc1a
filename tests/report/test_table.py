"""Tests of the table at the end of `make run`."""

import re

import pytest

from posttrain.report.table import summary_markdown, summary_table
from posttrain.runtime.exits import DataError
from tests.report.example import evaluation


def test_the_table_has_a_row_per_policy_and_names_the_page(make_reports):
    folder = make_reports()
    assert summary_table(folder).splitlines()[-1] == f"no page yet: `dvc repro report` makes {folder / 'index.html'}"
    (folder / "index.html").touch()
    lines = summary_table(folder).splitlines()
    assert len({len(line) for line in lines[:6]}) == 1, "columns stand under each other"
    assert re.split(r" {2,}", lines[0]) == [
        "policy",
        "strict success",
        "95 % interval",
        "strict pass^4",
        "success",
        "pass^4",
        "tasks",
    ]
    # a tenth less, and 0.9 ** 4 = 0.6561
    cells = ["teacher", "90.0 %", "85.0 … 95.0 %", "65.6 %", "100.0 %", "100.0 %", "40"]
    assert re.split(r" {2,}", lines[2]) == cells
    assert [line.split()[0] for line in lines[2:6]] == ["teacher", "base", "sft", "policy"]
    assert lines[-1] == f"report: {folder / 'index.html'}"


def test_the_markdown_table_says_the_same(make_reports):
    # 0.5 ** 4 = 0.0625, 0.6 ** 4 = 0.1296
    assert "| sft | 50.0 % | 45.0 … 55.0 % | 6.2 % | 60.0 % | 13.0 % | 40 |" in summary_markdown(make_reports())


def test_lost_episodes_have_a_column_where_there_are_some(make_reports):
    lost = {"evaluate/sft.json": evaluation(0.6) | {"num_lost": 3}}
    rows = [row.split(" | ")[-1] for row in summary_markdown(make_reports(lost)).splitlines()]
    assert rows == ["lost |", "---: |", "0 |", "0 |", "3 |", "0 |"]


def test_no_task_with_four_plays_has_no_pass_hat_4(make_reports):
    none = {"evaluate/sft.json": evaluation(0.6) | {"pass_hat_4": None, "strict_pass_hat_4": None}}
    assert "| sft | 50.0 % | 45.0 … 55.0 % | – | 60.0 % | – | 40 |" in summary_markdown(make_reports(none))


def test_a_policy_without_evaluation_is_named(make_reports):
    with pytest.raises(DataError, match="dvc repro evaluate@sft"):
        summary_table(make_reports({"evaluate/sft.json": None}))
