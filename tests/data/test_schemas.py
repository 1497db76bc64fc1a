"""Rows and tasks come back from Parquet and JSON as they were; damaged files are named."""

import json
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from posttrain.data.files import read_jsonl, write_jsonl
from posttrain.data.schemas import (
    TRAJECTORIES_SCHEMA,
    TRAJECTORY_COLUMNS,
    TrajectoryRow,
    labels_from_text,
    labels_text,
    read_tasks,
    read_trajectories,
    trajectory_columns,
    trajectory_from_columns,
    trajectory_row,
    write_tasks,
    write_trajectories,
)
from posttrain.runtime.exits import DataError
from posttrain.types import Message, Outcome, StopReason, Task, ToolCall, Trajectory
from posttrain.worlds.lookups.gold import Answer, Gold, GoldCall, gold_from_json
from posttrain.worlds.tools import tool_from
from tests.traces.drawn import TEXTS, Draw


def quote(code: str, days: int = 5) -> str:
    """Price of a listing.

    Args:
    code: canonical code
    """
    return f"{code} {days}"


GOLD = Gold(
    Answer("number", Decimal("12.30"), "HKD"),
    (GoldCall("quote", {"code": ("00700.HK", "0700.HK"), "days": (5, None)}),),
    asks="market",
)
TASK = Task(
    task_id="t1",
    labels={"kind": "tool_selection", "market": "hk", "language": "zh", "difficulty": "2"},
    split="sft",
    template="price",
    messages=(Message("system", "规则"), Message("user", "腾讯的股价？")),
    tools=("quote",),
    entities=("c9",),
    goal=GOLD.to_json(),
)
CALL = Message("assistant", "", "香港", (ToolCall("call_1", "quote", '{"code":"00700.HK"'),))
PLAYED = Trajectory(
    task_id="t1",
    messages=(
        *TASK.messages,
        CALL,
        Message("tool", '{"error":"x"}', tool_call_id="call_1"),
        Message("assistant", "ANSWER: 12.30 HKD"),
    ),
    stop_reason=StopReason.DONE,
    seed=3,
    token_ids=(1, 2, 3),
    mask=(0, 1, 1),
    logprobs=(0.0, -0.5, -1.0),
    scores={"format": 0.5, "completion": 1.0},
    reward=0.25,
    outcome=Outcome(
        success=False,
        strict_success=False,
        scores={"format": 0.5, "completion": 0.0},
        reward=-1.5,
        turn_scores=(0.0, 0.5),
        failure="bad_json",
        feedback="Write a call's arguments as one JSON object.",
    ),
)


def row() -> TrajectoryRow:
    return trajectory_row(PLAYED, TASK, {"quote": tool_from(quote)})


def test_a_task_comes_back_from_parquet_as_it_was(tmp_path):
    bare = Task("t2", "dev", (Message("user", "go"),), ())
    write_tasks(tmp_path / "tasks.parquet", [TASK, bare])
    assert read_tasks(tmp_path / "tasks.parquet") == [TASK, bare]
    assert read_tasks(tmp_path / "tasks.parquet", "test") == []
    assert gold_from_json(read_tasks(tmp_path / "tasks.parquet")[0].goal) == GOLD  # 12.30 with its last zero


def test_a_trajectory_comes_back_from_parquet_as_it_was_malformed_call_included(tmp_path):
    write_trajectories(tmp_path / "rows.parquet", [row()])
    (read,) = read_trajectories(tmp_path / "rows.parquet")
    assert read == row()
    # the order is prompt text
    assert list(read.tools[0]["function"]["parameters"]["properties"]) == ["code", "days"]


def test_equal_rows_give_equal_bytes(tmp_path):
    write_trajectories(tmp_path / "a.parquet", [row()])
    write_trajectories(tmp_path / "b.parquet", [row()])
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_no_column_of_the_demonstrations_holds_gold():
    assert not [name for name in TRAJECTORIES_SCHEMA.names if "gold" in name or "goal" in name]


def test_labels_are_an_object_of_texts_in_the_worlds_own_order():
    assert labels_text({"kind": "x", "area": "价"}) == '{"kind":"x","area":"价"}'
    assert list(labels_from_text(labels_text({"kind": "x", "area": "y"}))) == ["kind", "area"]


def test_a_trajectory_is_not_filed_under_another_task():
    with pytest.raises(ValueError, match="t2"):
        trajectory_row(Trajectory("t2", TASK.messages, StopReason.DONE), TASK, {"quote": tool_from(quote)})


@pytest.mark.parametrize("kept", [0, 4, 700])
def test_a_parquet_file_cut_off_in_the_middle_is_bad_data_with_its_name(tmp_path, kept):
    path = tmp_path / "rows.parquet"
    write_trajectories(path, [row()] * 50)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=rf"rows\.parquet has {kept} bytes .* nothing was read .* again"):
        read_trajectories(path)


def test_a_parquet_file_that_is_absent_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(DataError, match=r"rows\.parquet is not there; make it again \(`dvc repro`\)"):
        read_trajectories(tmp_path / "rows.parquet")


def test_a_parquet_file_of_another_table_is_named_with_what_it_lacks(tmp_path):
    write_tasks(tmp_path / "tasks.parquet", [TASK])
    with pytest.raises(DataError, match="no column trajectory_id"):
        read_trajectories(tmp_path / "tasks.parquet")


def test_a_failed_write_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"b": 1, "a": "价"}])
    assert path.read_text(encoding="utf-8") == '{"a": "价", "b": 1}\n'
    with pytest.raises(ValueError, match="Out of range"):
        write_jsonl(path, [{"a": 2}, {"a": float("nan")}])
    assert read_jsonl(path) == [{"a": "价", "b": 1}]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]


class Utf8Draw(Draw):
    """Parquet's text is UTF-8, which cannot hold half of a surrogate pair."""

    texts = tuple(text for text in TEXTS if "\ud83d" not in text)


def through_a_table(trajectories):
    schema = pa.schema(TRAJECTORY_COLUMNS)
    rows = [{name: trajectory_columns(one)[name] for name, _ in TRAJECTORY_COLUMNS} for one in trajectories]
    assert all(set(row) == set(schema.names) for row in map(trajectory_columns, trajectories))
    return [trajectory_from_columns(row) for row in pa.Table.from_pylist(rows, schema=schema).to_pylist()]


def through_json(trajectories):
    return [trajectory_from_columns(json.loads(json.dumps(trajectory_columns(one)))) for one in trajectories]


@pytest.mark.parametrize(("form", "draw"), [(through_a_table, Utf8Draw), (through_json, Draw)])
def test_every_field_of_any_trajectory_comes_back_equal(form, draw):
    drawn = [draw(seed).trajectory() for seed in range(500)]
    assert form(drawn) == drawn


def test_equal_trajectories_have_equal_columns_whatever_the_clock_said():
    for seed in range(100):
        one = Draw(seed).trajectory()
        later = replace(one, turns=tuple(replace(turn, latency_s=turn.latency_s + 1) for turn in one.turns))
        assert trajectory_columns(later) == trajectory_columns(one)
