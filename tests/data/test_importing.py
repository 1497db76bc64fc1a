"""Each format is read from a small record of its own, and records that are none are quarantined."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from posttrain.data.importing.demonstrations import match_world_tools, split_off_dev
from posttrain.data.importing.importer import (
    FORMATS,
    Imported,
    import_trajectories,
    quarantined,
    refuse_too_many_bad,
)
from posttrain.data.importing.tools import infer_tools
from posttrain.data.params import ImportFormat
from posttrain.data.schemas import (
    TASKS_SCHEMA,
    TrajectoryRow,
    trajectories_table,
    untrained_messages,
)
from posttrain.data.validation.validate import validate
from posttrain.runtime.exits import DataError
from posttrain.runtime.limits import MAX_MESSAGE_CHARS
from posttrain.types import Message, Outcome, StopReason, ToolCall
from posttrain.worlds.tools import Tool
from tests.data.imported_samples import QUOTE, SAMPLES

OPENAI = SAMPLES["openai"][1]
MESSAGES = OPENAI["messages"]


@pytest.fixture
def write(tmp_path: Path):
    def to_jsonl(*records: object) -> Path:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return path

    return to_jsonl


def only(imported: Imported) -> TrajectoryRow:
    assert imported.bad == []
    (row,) = imported.rows
    return row


def said(row: TrajectoryRow) -> list[tuple[str, str, list[tuple[str, str, str]], str | None]]:
    return [
        (one.role, one.content, [(call.id, call.name, call.arguments) for call in one.tool_calls], one.tool_call_id)
        for one in row.trajectory.messages
    ]


@pytest.mark.parametrize("sample", SAMPLES)
def test_each_format_is_told_by_its_records_and_its_rows_pass_validation(sample, write):
    file_format, record = SAMPLES[sample]
    imported = import_trajectories(write(record))
    assert imported.file_format == file_format
    only(imported)
    table = trajectories_table(imported.rows)
    assert validate([table], [TASKS_SCHEMA.empty_table()], max_tokens=500, source=Path("x")).reasons == {}


@pytest.mark.parametrize("sample", SAMPLES)
def test_each_format_reads_the_same_as_an_array_and_where_it_is_named(sample, write, tmp_path):
    file_format, record = SAMPLES[sample]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(record if sample == "tau2" else [record], indent=1), encoding="utf-8-sig")
    assert import_trajectories(path, file_format) == import_trajectories(write(record))


def test_steps_of_a_react_agent_become_calls_and_results_with_the_final_reward(write):
    record = SAMPLES["react"][1]
    row = only(import_trajectories(write(record)))
    assert said(row) == [
        ("user", "Tencent?", [], None),
        ("assistant", "", [("call_0", "quote", '{"code": "00700.HK"}')], None),
        ("tool", "380.20", [], "call_0"),
        ("assistant", "380.20", [], None),
    ]
    assert row.trajectory.messages[1].reasoning_content == "HK"
    assert (row.trajectory.reward, row.trajectory.stop_reason) == (0.5, StopReason.DONE)
    answered = {**record, "steps": record["steps"][:1], "final_answer": "380"}
    assert only(import_trajectories(write(answered))).trajectory.messages[-1].content == "380"
    cut_off = only(import_trajectories(write({**record, "steps": record["steps"][:1]})))
    assert cut_off.trajectory.stop_reason is StopReason.TURN_LIMIT


def test_an_instruction_and_its_input_are_what_is_asked(write):
    row = only(import_trajectories(write(SAMPLES["alpaca"][1])))
    assert said(row) == [("user", "Tencent?\n\nIn Hong Kong.", [], None), ("assistant", "380.20", [], None)]
    plain = {"instruction": "Tencent?", "input": "", "output": "380.20"}
    assert said(only(import_trajectories(write(plain))))[0] == ("user", "Tencent?", [], None)


def test_openai_messages_become_a_row_with_what_the_conversation_shows(write):
    row = only(import_trajectories(write({**OPENAI, "reward": 0.5})))
    assert said(row) == [
        ("system", "rules", [], None),
        ("user", "Tencent?", [], None),
        ("assistant", "", [("c1", "quote", '{"code": "00700.HK"}')], None),
        ("tool", "380.20", [], "c1"),
        ("assistant", "380.20", [], None),
    ]
    assert row.trajectory.outcome == Outcome(False, False, reward=0.5)
    assert (row.trajectory.stop_reason, row.split, row.tools) == (StopReason.DONE, "sft", (QUOTE,))
    assert row.labels == {"kind": "tool_selection", "language": "en"}


def test_the_older_openai_format_pairs_its_results_and_does_not_learn_what_has_no_weight(write):
    row = only(import_trajectories(write(SAMPLES["openai, older"][1])))
    assert said(row)[1:3] == [
        ("assistant", "", [("call_0", "quote", '{"code": "00700.HK"}')], None),
        ("tool", "380.20", [], "call_0"),
    ]
    assert untrained_messages(row.trajectory) == {3}
    assert row.tools[0]["function"]["parameters"] == QUOTE["function"]["parameters"]


def test_anthropics_blocks_become_thoughts_calls_and_results(write):
    row = only(import_trajectories(write(SAMPLES["anthropic"][1])))
    assert row.trajectory.messages[2].reasoning_content == "HK"
    assert said(row) == [
        ("system", "rules", [], None),
        ("user", "Tencent?", [], None),
        ("assistant", "One moment.", [("toolu_1", "quote", '{"code":"00700.HK"}')], None),
        ("tool", "380.20", [], "toolu_1"),
        ("user", "And now?", [], None),
        ("assistant", "380.20", [], None),
    ]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Tencent?", "completion": "380.20"},
        {"prompt": "Tencent?", "completion": "380.20", "label": False},
        {"chosen": MESSAGES, "rejected": MESSAGES[:3], "prompt": "Tencent?"},
        {
            "input": {"messages": MESSAGES[:2], "tools": [QUOTE]},
            "preferred_output": MESSAGES[4:],
            "non_preferred_output": MESSAGES[:1],
        },
    ],
)
def test_other_shapes_of_prompts_and_preferences(record, write):
    row = only(import_trajectories(write(record)))
    assert row.trajectory.messages[-1] == Message("assistant", "380.20")
    assert row.trajectory.outcome == (Outcome(False, False, reward=0.0) if "label" in record else None)


def test_hermes_calls_results_and_tools_are_taken_out_of_the_texts(write):
    row = only(import_trajectories(write(SAMPLES["hermes"][1])))
    assert said(row)[2:5] == [
        ("assistant", "", [("call_0", "quote", '{"code":"00700.HK"}'), ("call_1", "quote", '{"code":"a"}')], None),
        ("tool", '{"price": 380.2}', [], "call_0"),
        ("tool", "none", [], "call_1"),
    ]
    assert row.trajectory.messages[2].reasoning_content == "HK"
    assert (row.trajectory.messages[0].content, row.tools) == ("You call functions.", (QUOTE,))


def test_a_record_that_says_that_no_tools_were_offered_gets_none(write):
    assert only(import_trajectories(write({"messages": MESSAGES[:2] + MESSAGES[4:], "tools": []}))).tools == ()
    assert only(import_trajectories(write({**SAMPLES["sharegpt"][1], "tools": "[]"}))).tools == ()


def test_xlams_table_of_arguments_becomes_a_schema_and_its_calls_end_the_episode(write):
    row = only(import_trajectories(write(SAMPLES["xlam"][1])))
    assert row.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "code": {"description": "Listing.", "type": "string"},
            "days": {"description": "Days.", "default": [], "type": "array", "items": {"type": "integer"}},
        },
        "required": ["code"],
    }
    assert (row.trajectory.task_id, row.trajectory.stop_reason) == ("xlam-0", StopReason.WORLD_OVER)


def test_agentgyms_instruction_is_the_system_text_and_its_agreement_is_left_out(write):
    row = only(import_trajectories(write(SAMPLES["agentgym"][1])))
    assert [(role, content[:16]) for role, content, _, _ in said(row)] == [
        ("system", "You are web shop"),
        ("user", "Find a kettle."),
        ("assistant", "Thought:\nSearch."),
    ]
    assert (row.trajectory.task_id, row.tools) == ("webshop_0", ())


def test_tau2s_user_keeps_its_own_calls_and_its_greeting_is_not_learnt(write):
    row = only(import_trajectories(write(SAMPLES["tau2"][1])))
    roles = [role for role, _, _, _ in said(row)]
    assert roles == ["system", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assert untrained_messages(row.trajectory) == {1}
    assert (row.trajectory.task_id, row.trajectory.seed) == ("airline-3", 2)
    assert row.trajectory.outcome == Outcome(True, True, reward=1.0)


def test_an_end_by_a_stop_tool_is_an_end(write):
    row = only(import_trajectories(write(SAMPLES["tau_bench"][1])))
    assert row.trajectory.stop_reason == StopReason.STOP_TOOL
    ours = write({"messages": MESSAGES[:4]})
    assert only(import_trajectories(ours)).trajectory.stop_reason == StopReason.TURN_LIMIT
    assert only(import_trajectories(ours, stop_tools={"quote"})).trajectory.stop_reason == StopReason.STOP_TOOL


def test_a_log_of_bfcl_becomes_a_conversation_and_a_result_without_one_is_refused(write):
    imported = import_trajectories(write(SAMPLES["bfcl"][1], {"id": "simple_1", "result": "[quote(code='a')]"}))
    assert [call for _, _, calls, _ in said(imported.rows[0]) for call in calls] == [
        ("call_0", "quote", '{"code":"00700.HK"}')
    ]
    assert "nobody knows what was asked" in imported.bad[0].reason


def test_ids_that_an_earlier_turn_has_used_get_a_number_and_results_stay_with_their_calls(write):
    again = [*MESSAGES[:4], {**MESSAGES[2]}, {**MESSAGES[3], "content": "381"}, MESSAGES[4]]
    row = only(import_trajectories(write({"messages": again})))
    assert [calls[0][0] for _, _, calls, _ in said(row) if calls] == ["c1", "c1_0"]
    assert [(content, call_id) for role, content, _, call_id in said(row) if role == "tool"] == [
        ("380.20", "c1"),
        ("381", "c1_0"),
    ]


def test_labels_beyond_ours_are_kept_and_what_a_file_says_goes_before_what_is_derived(write):
    labels = {"team": "blue", "language": "zh"}
    row = only(import_trajectories(write({"messages": MESSAGES, "labels": labels, "difficulty": 2})))
    assert row.labels == {"kind": "tool_selection", "language": "zh", "team": "blue", "difficulty": "2"}


def test_episodes_with_one_opening_are_plays_of_one_task(write):
    other = [MESSAGES[0], {"role": "user", "content": "腾讯？"}, MESSAGES[-1]]
    first, second, third = import_trajectories(
        write({"messages": MESSAGES}, {"messages": MESSAGES[:3]}, {"messages": other})
    ).rows
    assert first.trajectory.task_id == second.trajectory.task_id != third.trajectory.task_id
    assert (third.labels["kind"], third.labels["language"]) == ("timing_decision", "zh")


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


def _messages(**agent: Any) -> dict[str, Any]:
    return {"messages": [MESSAGES[1], {"role": "assistant", "content": "x", **agent}]}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"chat": []}, "it has no 'messages'"),
        ({"messages": []}, "messages is no list, or an empty one"),
        ({"messages": [{"role": "robot", "content": ""}]}, "role 'robot' is none of"),
        ({"messages": ["user: hello"]}, "a message is str, not an object"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text can be trained on"),
        (_messages(tool_calls=[{"id": "1", "function": {"name": 5, "arguments": "{}"}}]), "no name as text"),
        (
            _messages(tool_calls=[{"id": "1", "function": {"name": "f", "arguments": [1]}}]),
            "neither text nor an object",
        ),
        (_messages(tool_calls=[{"id": 1, "function": {"name": "f", "arguments": "{}"}}]), "id is not text"),
        (_messages(weight=0), "none of its messages is to be trained on"),
        (_messages(weight=0.5), "its weight is 0.5"),
        (_messages(content="<tool_call>{]</tool_call>"), "neither JSON nor"),
        ({"messages": [{"role": "user", "content": "\ud800"}, MESSAGES[-1]]}, "half of a character"),
        ({**OPENAI, "reward": "good"}, "reward is 'good'; it must be a number"),
        ({**OPENAI, "reward": 1e12}, "it must be a number from -1e+09 to 1e+09"),
        ({**OPENAI, "success": "yes"}, "neither true nor false"),
        ({**OPENAI, "split": "train"}, "split is 'train', none of sft"),
        ({**OPENAI, "seed": -1}, "seed is '-1', not a whole number"),
        ({**OPENAI, "task_id": {"a": 1}}, "not a line of text"),
        ({**OPENAI, "difficulty": "hard"}, "difficulty is 'hard'"),
        ({**OPENAI, "labels": ["a"]}, "labels are no object"),
        ({**OPENAI, "stop_reason": "bored"}, "stop_reason is 'bored'"),
        ({**OPENAI, "tools": [{"type": "web_search"}]}, "only functions can be offered"),
        ({**OPENAI, "tools": [{"name": "<|end|>", "parameters": {}}]}, "a tool's name is '<|end|>'"),
        ({**OPENAI, "tools": [QUOTE, QUOTE]}, "offers 'quote' twice"),
        ({**OPENAI, "tools": "[{"}, "tools is text and no JSON: '[{'"),
        (SAMPLES["xlam"][1], "it looks like xlam"),
    ],
)
def test_a_record_that_is_no_trajectory_goes_aside_with_its_number_and_reason(write, record, reason):
    imported = import_trajectories(write(OPENAI, record, OPENAI), "openai")
    (bad,) = imported.bad
    assert (bad.number, len(imported.rows)) == (2, 2)
    assert reason in bad.reason
    assert [list(one) for one in quarantined(imported.bad)] == [["number", "reason", "record"]]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"messages": [', "not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"messages": [], "messages": []}', "'messages' stands twice"),
        (b'{"reward": NaN}', "NaN is no number"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "4300 digits"),
        (b'{"messages": "\xff"}', "not UTF-8"),
        (b'"text"', "str, not an object"),
        (b"null", "NoneType, not an object"),
    ],
)
@pytest.mark.parametrize("is_last", [False, True])
def test_a_line_that_is_no_record_goes_aside(tmp_path, line, reason, is_last):
    good = json.dumps(OPENAI).encode()
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join([good, good, line] if is_last else [good, line, good]))
    imported = import_trajectories(path)
    assert [(bad.number, reason in bad.reason) for bad in imported.bad] == [(3 if is_last else 2, True)]
    assert len(imported.rows) == 2


@pytest.mark.parametrize("item", ['{"reward": NaN}', '{"a": 1, "a": 2}', '{"messages": ['])
def test_an_items_fault_in_an_array_refuses_the_file_and_names_jsonl(tmp_path, item):
    path = tmp_path / "rows.json"
    path.write_text(f"[{json.dumps(OPENAI)}, {item}]")
    with pytest.raises(DataError, match=r"rows\.json is cut off or damaged .* write it as JSONL"):
        import_trajectories(path)


def test_too_many_bad_records_are_refused_in_a_sentence_with_the_first_of_each(write):
    imported = import_trajectories(write(OPENAI, {**OPENAI, "seed": -1}, {**OPENAI, "seed": -1}, OPENAI), "openai")
    refuse_too_many_bad(imported, max_quarantine_frac=0.5, source=Path("ours.jsonl"))
    with pytest.raises(DataError) as caught:
        refuse_too_many_bad(imported, max_quarantine_frac=0.4, source=Path("ours.jsonl"))
    for part in ("ours.jsonl", "2 of 4 records", "openai", "40.0%", "its seed is '-1'", "(2, first record 2)"):
        assert part in str(caught.value)
    only_bad = import_trajectories(write({**OPENAI, "seed": -1}))
    with pytest.raises(DataError, match="1 of 1 records"):
        refuse_too_many_bad(only_bad, max_quarantine_frac=1.0, source=Path("ours.jsonl"))


def test_a_file_of_another_format_or_of_none_is_named(write, tmp_path):
    with pytest.raises(DataError, match=r"looks like xlam \(query, answers, tools\), and .*format says openai"):
        import_trajectories(write(SAMPLES["xlam"][1]), "openai")
    with pytest.raises(
        DataError, match=r"has records of answer, question, which no known format has; there are tau_bench"
    ):
        import_trajectories(write({"question": "a", "answer": "b"}))
    with pytest.raises(DataError, match="no trajectory"):
        import_trajectories(write())
    (tmp_path / "cut.jsonl").write_text('{"messages": [{"role": "us')
    with pytest.raises(DataError, match=r"none of its first 1 records can be read; of the first, its line is not JSON"):
        import_trajectories(tmp_path / "cut.jsonl")
    with pytest.raises(DataError, match="not a file"):
        import_trajectories(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="not a file"):
        import_trajectories(tmp_path)


def test_keys_in_logs_are_cut_out_and_endless_messages_refused(write, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789abcdefghij")
    asked = {"role": "user", "content": "my key is sk-planted-0123456789abcdefghij"}
    answered = {"role": "assistant", "content": "keep it to yourself"}
    endless = {**answered, "content": "x" * (MAX_MESSAGE_CHARS + 1)}
    imported = import_trajectories(write({"messages": [asked, answered]}, {"messages": [asked, endless]}))
    assert imported.rows[0].trajectory.messages[0].content == "my key is [key removed: OPENAI_API_KEY]"
    assert "1000001 characters" in imported.bad[0].reason
    assert "sk-planted" not in imported.bad[0].shown


def test_whole_tasks_are_kept_back_by_the_hash_of_their_ids_and_their_words(write):
    def record(task: int, words: str = "") -> dict[str, Any]:
        asked = {"role": "user", "content": words or f"question {task}"}
        return {"messages": [asked, MESSAGES[-1]], "task_id": f"t{task}"}

    rows = import_trajectories(write(*[record(task) for task in range(100) for _ in range(2)])).rows
    split = {row.trajectory.task_id: row.split for row in split_off_dev(rows, 0.2)}
    assert [row.split for row in split_off_dev(rows, 0.2)] == [split[row.trajectory.task_id] for row in rows]
    assert 10 <= sum(value == "dev" for value in split.values()) <= 30
    fewer = {row.trajectory.task_id: row.split for row in split_off_dev(rows[:100], 0.2)}
    assert fewer == {task: split[task] for task in fewer}
    alike = [record(task, "the same") for task in range(50)]
    one_question = import_trajectories(write(*alike, *[record(task) for task in range(50, 99)])).rows
    half = split_off_dev(one_question, 0.5)
    assert [len({row.split for row in found}) for found in (half[:50], half[50:])] == [1, 2]
    with pytest.raises(DataError, match=r"dev_frac is 0\.01, and of 1 imported tasks none would be kept back"):
        split_off_dev(rows[:1], 0.01)
    assert split_off_dev(rows, 0.0) == rows


def test_rows_with_tools_that_the_world_lacks_go_aside_or_are_refused_in_a_sentence(write):
    imported = import_trajectories(write({"messages": []}, OPENAI, OPENAI, _messages()))
    tools = {name: Tool(name, "Its own words.", {"type": "object"}, lambda: None) for name in ("quote", "search")}
    assert match_world_tools(imported, tools, world="stocks", max_other_frac=0.0) == imported
    search = {"search": tools["search"]}
    with pytest.raises(DataError) as caught:
        match_world_tools(imported, search, world="stocks", max_other_frac=0.1)
    for part in ("2 of 3 imported rows use quote", "world stocks", "it has search"):
        assert part in str(caught.value)
    left = match_world_tools(imported, search, world="stocks", max_other_frac=0.7)
    assert left.rows == imported.rows[2:]
    assert [(one.number, "quote" in one.reason) for one in left.bad][1:] == [(2, True), (3, True)]
    with pytest.raises(DataError, match="3 of 3 imported rows"):
        match_world_tools(import_trajectories(write(*[OPENAI] * 3)), search, world="stocks", max_other_frac=1.0)


def test_tools_that_a_file_does_not_describe_are_offered_as_the_world_does(write):
    unsaid = {name: value for name, value in OPENAI.items() if name != "tools"}
    tools = {name: Tool(name, "Its own words.", {"type": "object"}, lambda: None) for name in ("search", "quote")}
    (row,) = match_world_tools(import_trajectories(write(unsaid)), tools, world="w", max_other_frac=0.0).rows
    assert row.tools == (tools["quote"].schema(),)


def test_the_knob_names_the_formats_that_there_are():
    assert set(get_args(ImportFormat)) == set(FORMATS)
