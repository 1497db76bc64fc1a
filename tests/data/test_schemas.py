from decimal import Decimal

import pytest

from posttrain.data.files import read_jsonl, write_jsonl
from posttrain.data.schemas import (
    TRAJECTORIES_SCHEMA,
    TrajectoryRow,
    labels_from_text,
    labels_text,
    read_tasks,
    read_trajectories,
    trajectory_row,
    write_tasks,
    write_trajectories,
)
from posttrain.runtime.exits import DataError
from posttrain.types import Message, Outcome, StopReason, Task, ToolCall, Trajectory
from posttrain.worlds.lookups.gold import Answer, Gold, GoldCall, gold_from_json
from posttrain.worlds.tools import tool_from


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
    write_tasks(tmp_path / "tasks.parquet", [TASK])
    assert read_tasks(tmp_path / "tasks.parquet") == [TASK]
    assert read_tasks(tmp_path / "tasks.parquet", "test") == []


def test_a_trajectory_comes_back_from_parquet_as_it_was_malformed_call_included(tmp_path):
    write_trajectories(tmp_path / "rows.parquet", [row()])
    assert read_trajectories(tmp_path / "rows.parquet") == [row()]


def test_the_order_of_a_tools_parameters_survives_because_it_is_prompt_text(tmp_path):
    write_trajectories(tmp_path / "rows.parquet", [row()])
    (read,) = read_trajectories(tmp_path / "rows.parquet")
    assert list(read.tools[0]["function"]["parameters"]["properties"]) == ["code", "days"]


def test_a_row_that_was_never_scored_comes_back_without_a_reward(tmp_path):
    bare = Trajectory("t1", TASK.messages, StopReason.TURN_LIMIT)
    write_trajectories(tmp_path / "rows.parquet", [trajectory_row(bare, TASK, {"quote": tool_from(quote)})])
    (read,) = read_trajectories(tmp_path / "rows.parquet")
    assert read.trajectory == bare
    assert read.reasoning is None


def test_equal_rows_give_equal_bytes(tmp_path):
    write_trajectories(tmp_path / "a.parquet", [row()])
    write_trajectories(tmp_path / "b.parquet", [row()])
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_no_column_of_the_demonstrations_holds_gold():
    assert not [name for name in TRAJECTORIES_SCHEMA.names if "gold" in name or "goal" in name]


def test_a_number_keeps_its_last_zero_in_the_goal_column(tmp_path):
    write_tasks(tmp_path / "tasks.parquet", [TASK])
    [read] = read_tasks(tmp_path / "tasks.parquet")
    assert '"value":"12.30"' in read.goal
    assert gold_from_json(read.goal) == GOLD


def test_labels_are_an_object_of_texts_in_the_worlds_own_order():
    assert labels_text({"kind": "x", "area": "价"}) == '{"kind":"x","area":"价"}'
    assert list(labels_from_text(labels_text({"kind": "x", "area": "y"}))) == ["kind", "area"]
    for text in ("[]", '{"difficulty":2}', "kind"):
        with pytest.raises(ValueError, match=r"labels are|Expecting"):
            labels_from_text(text)


def test_a_task_that_says_nothing_of_itself_comes_back_too(tmp_path):
    bare = Task("t2", "dev", (Message("user", "go"),), ())
    write_tasks(tmp_path / "tasks.parquet", [bare])
    assert read_tasks(tmp_path / "tasks.parquet") == [bare]


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


def test_a_parquet_file_of_another_table_is_named_with_what_it_lacks(tmp_path):
    write_tasks(tmp_path / "tasks.parquet", [TASK])
    with pytest.raises(DataError, match="no column trajectory_id"):
        read_trajectories(tmp_path / "tasks.parquet")


def test_a_jsonl_file_cut_off_in_the_middle_says_how_many_rows_it_gave(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"b": 1, "a": "价"}, {"a": "2"}])
    assert path.read_text(encoding="utf-8") == '{"a": "价", "b": 1}\n{"a": "2"}\n'
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"rows\.jsonl: the last line is cut off .* 1 rows were read"):
        read_jsonl(path)


def test_a_failed_write_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"a": 1}])
    with pytest.raises(ValueError, match="Out of range"):
        write_jsonl(path, [{"a": 2}, {"a": float("nan")}])
    assert read_jsonl(path) == [{"a": 1}]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
