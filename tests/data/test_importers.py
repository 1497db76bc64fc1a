import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain.data.importers import import_trajectories
from posttrain.data.inferred_tools import infer_tools
from posttrain.data.schemas import read_trajectories, write_trajectories
from posttrain.exits import DataError
from posttrain.limits import MAX_MESSAGE_CHARS
from posttrain.types import Message, StopReason, ToolCall

CALL = {"id": "c1", "type": "function", "function": {"name": "quote", "arguments": '{"code":"00700.HK"}'}}
MESSAGES = [
    {"role": "developer", "content": "rules"},
    {"role": "user", "content": [{"type": "text", "text": "腾讯"}, {"type": "text", "text": "多少钱？"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "380.20"},
    {"role": "assistant", "content": "380.20"},
]
TOOL = {
    "type": "function",
    "function": {"name": "quote", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}}},
}


@pytest.fixture
def write(tmp_path):
    def to_jsonl(*records: object):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return path

    return to_jsonl


def test_openai_messages_become_a_row_with_what_the_conversation_shows(write):
    (row,) = import_trajectories(write({"messages": MESSAGES, "tools": [TOOL], "reward": 0.5}), "openai")
    assert row.trajectory.messages[1] == Message("user", "腾讯多少钱？")
    assert row.trajectory.messages[0].role == "system"
    assert row.trajectory.messages[2].tool_calls == (ToolCall("c1", "quote", '{"code":"00700.HK"}'),)
    assert (row.trajectory.reward, row.trajectory.stop_reason) == (0.5, StopReason.DONE)
    assert row.cell == "tool_selection/none/zh/1"
    assert row.tools == (TOOL,)


def test_episodes_with_one_opening_are_plays_of_one_task(write):
    other = [MESSAGES[0], {"role": "user", "content": "Tencent?"}, MESSAGES[-1]]
    first, second, third = import_trajectories(
        write({"messages": MESSAGES}, {"messages": MESSAGES[:3]}, {"messages": other}), "openai"
    )
    assert first.trajectory.task_id == second.trajectory.task_id != third.trajectory.task_id
    assert (second.trajectory.stop_reason, third.kind, third.language) == (
        StopReason.TURN_LIMIT,
        "timing_decision",
        "en",
    )


def test_a_parquet_file_of_messages_reads_as_its_jsonl_does(write, tmp_path):
    messages = [{"role": "user", "content": "Tencent?"}, *MESSAGES[2:]]
    pq.write_table(pa.Table.from_pylist([{"messages": messages, "reward": 1.0}]), tmp_path / "rows.parquet")
    assert import_trajectories(tmp_path / "rows.parquet", "openai") == import_trajectories(
        write({"messages": messages, "reward": 1.0}), "openai"
    )


def test_what_the_pipeline_wrote_comes_back_as_it_was(write, tmp_path):
    (row,) = import_trajectories(write({"messages": MESSAGES, "tools": [TOOL], "reward": 0.5}), "openai")
    named = replace(
        row,
        market="hk",
        difficulty=2,
        companies=("c9",),
        template="price",
        trajectory=replace(row.trajectory, task_id="t1", seed=4),
    )
    write_trajectories(tmp_path / "rows.parquet", [named])
    assert import_trajectories(tmp_path / "rows.parquet", "openai") == [named]


def test_tools_that_were_not_recorded_are_inferred_from_all_calls_of_the_file():
    def called(arguments: str) -> list[Message]:
        return [Message("assistant", tool_calls=(ToolCall("1", "f", arguments),))]

    (schema,) = infer_tools(
        [called('{"a":1}'), called('{"a":2.5,"b":"x"}'), called('{"a"'), called('{"a":3,"b":["y"]}')]
    )
    assert schema["function"]["name"] == "f"
    assert schema["function"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": ["array", "string"]}},
        "required": ["a"],
    }


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"conversation": []}, "it has no 'messages'"),
        ({"messages": []}, "messages is not a list with messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "role 'robot' is none of"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
            "it has no 'id'",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}]}
                ]
            },
            "JSON text of an object",
        ),
        ({"messages": MESSAGES, "reward": "good"}, "could not convert"),
        ({"messages": MESSAGES, "reward": float("nan")}, "reward is nan"),
        ({"messages": MESSAGES, "tools": [{"name": "f"}]}, "it has no 'function'"),
    ],
)
def test_a_record_that_is_no_trajectory_is_named_with_its_reason(write, record, reason):
    with pytest.raises(DataError, match=rf"rows\.jsonl: record 2 of 2 .*{reason}.* 1 were read before"):
        import_trajectories(write({"messages": MESSAGES}, record), "openai")


def test_an_empty_an_absent_and_a_misnamed_file_are_bad_data(write, tmp_path):
    with pytest.raises(DataError, match="no trajectory"):
        import_trajectories(write(), "openai")
    with pytest.raises(DataError, match="not a file"):
        import_trajectories(tmp_path / "absent.jsonl", "openai")
    with pytest.raises(DataError, match="not a file"):
        import_trajectories(tmp_path, "openai")


def test_200_real_tau_bench_trajectories_are_50_tasks_played_four_times(shared_data):
    rows = import_trajectories(shared_data / "tau_bench/gpt-4o-airline.json", "tau_bench")
    assert len(rows) == 200
    assert set(Counter(row.trajectory.task_id for row in rows).values()) == {4}
    assert len({row.trajectory.task_id for row in rows}) == 50
    assert len({row.trajectory_id for row in rows}) == 200
    assert sum(row.trajectory.reward == 1.0 for row in rows) == 84
    assert sum(len(message.tool_calls) for row in rows for message in row.trajectory.messages) == 1164
    assert Counter(row.trajectory.stop_reason for row in rows) == {
        StopReason.DONE: 149,
        StopReason.STOP_TOOL: 48,
        StopReason.TURN_LIMIT: 3,
    }
    assert len(rows[0].tools) == 14
    assert {row.language for row in rows} == {"en"}


def test_real_trajectories_survive_parquet(shared_data, tmp_path):
    rows = import_trajectories(shared_data / "tau_bench/gpt-4o-airline.json", "tau_bench")
    write_trajectories(tmp_path / "rows.parquet", rows)
    assert read_trajectories(tmp_path / "rows.parquet") == rows


def test_a_results_file_cut_off_in_the_middle_says_how_many_were_whole(shared_data, tmp_path):
    text = (shared_data / "tau_bench/gpt-4o-airline.json").read_text(encoding="utf-8")
    path = tmp_path / "cut.json"
    path.write_text(text[: text.index('"task_id": 1,')], encoding="utf-8")  # within the second record
    with pytest.raises(DataError, match=r"cut\.json is cut off .* 1 records are whole"):
        import_trajectories(path, "tau_bench")


def test_keys_in_logs_are_cut_out_and_endless_messages_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789abcdefghij")
    path = tmp_path / "ours.jsonl"
    asked = {"role": "user", "content": "my key is sk-planted-0123456789abcdefghij"}
    answered = {"role": "assistant", "content": "keep it to yourself"}
    path.write_text(json.dumps({"messages": [asked, answered]}) + "\n")
    [row] = import_trajectories(path, "openai")
    assert row.trajectory.messages[0].content == "my key is [key removed: OPENAI_API_KEY]"
    path.write_text(json.dumps({"messages": [asked, {**answered, "content": "x" * (MAX_MESSAGE_CHARS + 1)}]}) + "\n")
    with pytest.raises(DataError, match=r"record 1 of 1 .* 1000001 characters"):
        import_trajectories(path, "openai")
