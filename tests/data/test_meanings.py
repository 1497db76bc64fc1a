"""Records of others mean after the import what they meant before, or are refused, or the import
says what it did not read: generated ones, and one of each kind that public data sets have."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from benchmarks.records import FORMATS, MUTATIONS, TOOLS, trials
from posttrain.data.importing.importer import FORMATS as READ
from posttrain.data.importing.importer import Imported, import_trajectories, unread_keys
from posttrain.data.importing.records import MAX_LINE_BYTES
from posttrain.data.schemas import (
    TASKS_SCHEMA,
    TrajectoryRow,
    trajectories_table,
    untrained_messages,
)
from posttrain.data.validation.validate import validate
from posttrain.runtime.exits import DataError
from posttrain.types import Message, Outcome

ASKED = {"role": "user", "content": "Is it warm in Oslo?"}
ANSWERED = {"role": "assistant", "content": "Yes."}
CALL = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"town": "Oslo"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "warm"}
OSLO, LIMA = ("get_weather", '{"town":"Oslo"}'), ("get_weather", '{"town":"Lima"}')


@pytest.fixture
def read(tmp_path: Path):
    def one(*records: Any, file_format: str | None = None) -> Imported:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return import_trajectories(path, file_format)

    return one


def only(imported: Imported) -> TrajectoryRow:
    assert imported.bad == []
    (row,) = imported.rows
    return row


def calls(row: TrajectoryRow) -> list[tuple[str, str]]:
    made = [call for one in row.trajectory.messages for call in one.tool_calls]
    return [(call.name, json.dumps(json.loads(call.arguments), separators=(",", ":"))) for call in made]


def results(row: TrajectoryRow) -> list[str]:
    return [one.content for one in row.trajectory.messages if one.role == "tool"]


def reason(imported: Imported) -> str:
    (bad,) = imported.bad
    return bad.reason


def test_no_generated_record_loses_its_meaning_in_silence(tmp_path):
    """300 of the 5,000 of `python -m benchmarks.records`."""
    fates: dict[str, Counter[str]] = {name: Counter() for name in MUTATIONS}
    wrong, formats = [], set()
    for name, mutation, fate, record in trials(300, 7, tmp_path):
        fates[mutation][fate] += 1
        formats.add(name)
        wrong += [] if fate in ("kept", "refused", "told") else [(name, mutation, fate, record)]
    assert wrong == []
    assert set(fates["none"]) == {"kept"}
    assert formats == set(FORMATS)
    assert sum(counted["kept"] for counted in fates.values()) > 100
    known = ("arguments renamed as others do", "nulls as datasets pads", "results in another order", "not learnt")
    assert all(fates[mutation]["kept"] > 0.7 * sum(fates[mutation].values()) > 1 for mutation in known)


@pytest.mark.parametrize("key", ["label", "kto_tag", "is_correct"])
@pytest.mark.parametrize("chat", ["messages", "conversations"])
def test_a_mark_of_people_is_the_success_of_its_record(read, key, chat):
    record = {chat: [ASKED, ANSWERED], key: False}
    assert only(read(record)).trajectory.outcome == Outcome(False, False, reward=0.0)
    assert f"its {key} is '1', neither true nor false" in reason(read({**record, key: 1}))
    assert "success and" in reason(read({**record, "success": True}))


@pytest.mark.parametrize(
    "chosen", [{"role": "assistant", "content": "Yes."}, [{"role": "assistant", "content": "Yes."}], "Yes."]
)
def test_the_chosen_side_stands_behind_its_messages_and_what_was_said_before_is_not_learnt(read, chosen):
    before = [ASKED, {"role": "assistant", "content": "In May?"}, {"role": "user", "content": "Now."}]
    row = only(read({"messages": before, "chosen": chosen, "rejected": "No."}))
    assert row.trajectory.messages[-1] == Message("assistant", "Yes.")
    assert untrained_messages(row.trajectory) == {1}
    assert "equal" in reason(read({"messages": before, "chosen": chosen, "rejected": chosen}))
    answered = [*before, {"role": "assistant", "content": "Other."}]
    assert "its chosen side is another one" in reason(read({"messages": answered, "chosen": chosen}))


def test_messages_beside_a_rejected_side_are_the_chosen_side(read):
    record = {"messages": [ASKED, ANSWERED], "rejected_response": "No."}
    assert only(read(record)).trajectory.messages[-1].content == "Yes."
    assert "equal" in reason(read({**record, "rejected_response": "Yes."}))


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        *((0, key, [0, 1]) for key in ("loss_mask", "assistant_masks", "train_mask", "history", "images", "input_ids")),
        *((0, key, 0.5) for key in ("weight", "sample_weight", "score", "loss")),
        *((1, key, "x") for key in ("recipient", "channel", "audio", "train_detail", "label", "rejected_content")),
        *((1, key, [CALL]) for key in ("tool_calls", "tools", "toolInvocations")),
    ],
)
def test_a_key_that_changes_what_a_record_means_refuses_it_by_name(read, place, key, value):
    record: dict[str, Any] = {"messages": [dict(ASKED), ANSWERED]}
    (record if place == 0 else record["messages"][0])[key] = value
    said = reason(read(record))
    assert f"{key!r}" in said
    assert "changes what it means" in said
    empty: dict[str, Any] = {"messages": [dict(ASKED), ANSWERED]}
    (empty if place == 0 else empty["messages"][0])[key] = None
    assert only(read(empty)).trajectory.messages == (Message("user", ASKED["content"]), Message("assistant", "Yes."))


def test_a_score_beside_a_reward_is_only_told(read):
    row = read({"messages": [ASKED, ANSWERED], "reward": 1, "score": 7})
    assert (only(row).trajectory.reward, row.unread) == (1.0, {"score": 1})


def test_every_other_key_is_told_once_with_its_number_of_records(read):
    noted = {"messages": [{**ASKED, "name": "Ann"}, ANSWERED], "source": "logs"}
    imported = read(noted, noted, {"messages": [ASKED, ANSWERED]})
    assert unread_keys(imported.unread) == "keys not read, by the number of records: messages: name in 2, source in 2"
    assert unread_keys(read({"messages": [ASKED, ANSWERED]}).unread) == ""


@pytest.mark.parametrize("name", ["weight", "loss", "train", "training", "loss_weight"])
def test_what_is_marked_as_not_learnt_is_not_learnt(read, name):
    first = {"role": "assistant", "content": "Well.", name: False}
    row = only(read({"messages": [ASKED, first, ASKED, {**ANSWERED, name: True}]}))
    assert untrained_messages(row.trajectory) == {1}
    assert "only messages of the agent are trained on" in reason(read({"messages": [{**ASKED, name: 1}, ANSWERED]}))


def test_a_conversation_that_ends_with_the_user_is_no_demonstration_and_may_be_a_play(read):
    asked_back = {"messages": [ASKED, ANSWERED, {"role": "user", "content": "And Lima?"}]}
    assert "nothing shows what the agent should answer" in reason(read(asked_back))
    assert only(read({**asked_back, "reward": 0.5})).trajectory.messages[-1].role == "user"
    elsewhere = read({"messages": [ASKED, CALLED, RESULT], "response": "Yes."})
    assert elsewhere.unread == {"response": 1}


def test_a_system_text_beside_the_messages_stands_once_or_is_refused(read):
    system = {"role": "system", "content": "Be brief."}
    for record in ({"system_prompt": "Be brief."}, {"system": "Be brief.", "messages": [system, ASKED, ANSWERED]}):
        row = only(read({"messages": [ASKED, ANSWERED], **record}))
        assert [one.role for one in row.trajectory.messages] == ["system", "user", "assistant"]
    assert "another among them" in reason(read({"messages": [system, ASKED, ANSWERED], "system": "Be long."}))


@pytest.mark.parametrize("key", ["arguments", "args", "parameters", "input", "kwargs"])
@pytest.mark.parametrize("given", [{"town": "Oslo"}, '{"town":"Oslo"}', json.dumps('{"town":"Oslo"}')])
def test_arguments_are_read_in_every_spelling_also_encoded_twice(read, key, given):
    call = {"name": "get_weather", key: given, "id": "a"}
    openai = {"messages": [ASKED, {"role": "assistant", "tool_calls": [call]}, RESULT, ANSWERED]}
    turns = [
        {"from": "human", "value": "Is it warm?"},
        {"from": "function_call", "value": json.dumps({"name": "get_weather", key: given})},
        {"from": "observation", "value": "warm"},
        {"from": "gpt", "value": "Yes."},
    ]
    for record in (openai, {"conversations": turns}):
        assert calls(only(read(record))) == [OSLO]


def test_arguments_that_nobody_can_read_refuse_the_record_with_the_call(read):
    def with_call(**call: Any) -> dict[str, Any]:
        return {"messages": [ASKED, {"role": "assistant", "tool_calls": [call]}, ANSWERED]}

    assert "a call of f has no arguments, but payload" in reason(read(with_call(name="f", payload={"a": 1})))
    assert "arguments and args, which mean the same and differ" in reason(
        read(with_call(name="f", arguments="{}", args={"a": 1}))
    )
    assert "type 'custom'" in reason(read(with_call(type="custom", custom={"name": "f", "input": "x"})))


@pytest.mark.parametrize("given", [{}, {"arguments": ""}, {"arguments": None}, {"arguments": "{}"}, {"args": {}}])
def test_no_arguments_are_the_empty_object_and_pass_the_rules(read, given):
    call = {"id": "a", "function": {"name": "list_harbours", **given}}
    record = {"messages": [ASKED, {**CALLED, "tool_calls": [call]}, RESULT, ANSWERED], "tools": TOOLS}
    row = only(read(record))
    assert calls(row) == [("list_harbours", "{}")]
    assert (
        validate([trajectories_table([row])], [TASKS_SCHEMA.empty_table()], max_tokens=500, source=Path()).counts()
        == {}
    )


@pytest.mark.parametrize("key", ["content", "parts", "value", "text"])
@pytest.mark.parametrize("inner", ["text", "value", "content"])
def test_texts_are_read_in_every_spelling_and_a_message_without_any_is_refused(read, key, inner):
    parts = [{"type": "text", inner: "Yes."}]
    row = only(read({"messages": [ASKED, {"role": "assistant", key: parts}]}))
    assert row.trajectory.messages[-1].content == "Yes."
    assert "no content; it has role, body" in reason(read({"messages": [{"role": "user", "body": "x"}, ANSWERED]}))
    assert "neither content nor calls" in reason(read({"messages": [ASKED, {"role": "assistant", "body": "x"}]}))
    assert "a part of its content has no text; it has type, words" in reason(
        read({"messages": [ASKED, {"role": "assistant", "content": [{"type": "text", "words": "x"}]}]})
    )


def test_a_refusal_is_what_the_agent_said(read):
    refused = {"role": "assistant", "content": None, "refusal": "I can't."}
    assert only(read({"messages": [ASKED, refused]})).trajectory.messages[-1].content == "I can't."
    assert "a refusal beside its content" in reason(read({"messages": [ASKED, {**refused, "content": "Yes."}]}))


SPOKEN = {
    "pythonic": "[get_weather(town='Oslo'), get_weather(town='Lima')]",
    "llama": '{"name": "get_weather", "parameters": {"town": "Oslo"}}; '
    '{"name": "get_weather", "parameters": {"town": "Lima"}}',
    "bare list": json.dumps([{"name": "get_weather", "arguments": {"town": town}} for town in ("Oslo", "Lima")]),
    "python tag": '<|python_tag|>{"name": "get_weather", "parameters": {"town": "Oslo"}}; '
    '{"name": "get_weather", "parameters": {"town": "Lima"}}',
    "mistral": "[TOOL_CALLS]"
    + json.dumps([{"name": "get_weather", "arguments": {"town": town}} for town in ("Oslo", "Lima")]),
    "lfm2": "<|tool_call_start|>[get_weather(town='Oslo'), get_weather(town='Lima')]<|tool_call_end|>",
    "glaive": '<functioncall> {"name": "get_weather", "arguments": \'{"town": "Oslo"}\'} <|endoftext|>\n'
    '<functioncall> {"name": "get_weather", "arguments": {"town": "Lima"}}',
    "hermes": "<tool_call>{'name': 'get_weather', 'arguments': {'town': 'Oslo'}}</tool_call>"
    '<tool_call>{"name": "get_weather", "parameters": {"town": "Lima"}}',
}


def spoken(text: str, **columns: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": text}
    heard = [{"role": "tool", "content": "warm"}, {"role": "tool", "content": "hot"}]
    return {"messages": [ASKED, said, *heard, ANSWERED], **columns}


@pytest.mark.parametrize("form", SPOKEN)
def test_calls_that_an_agent_speaks_are_read_as_they_are_in_play(read, form):
    row = only(read(spoken(SPOKEN[form], tools=TOOLS)))
    assert calls(row) == [OSLO, LIMA]
    assert row.trajectory.messages[1].content == ""


@pytest.mark.parametrize("form", ["pythonic", "llama", "bare list"])
def test_calls_without_marks_are_refused_where_no_such_tool_is_offered_and_text_where_none_is(read, form):
    assert "no tool of that name is offered" in reason(read(spoken(SPOKEN[form])))
    answered = {"messages": [ASKED, {"role": "assistant", "content": SPOKEN[form]}], "tools": []}
    assert only(read(answered)).trajectory.messages[-1].content == SPOKEN[form]


@pytest.mark.parametrize(
    "text", ["[get_weather('Oslo')]", '<tool_call>{"name": "get_weather", ', "<function=get_weather>{}</function>"]
)
def test_a_call_that_cannot_be_read_whole_refuses_its_record(read, text):
    assert reason(read(spoken(text, tools=TOOLS)))


def test_toolaces_tools_are_taken_out_of_the_systems_text(read):
    listed = json.dumps([tool["function"] for tool in TOOLS])
    turns = [
        {"from": "user", "value": "Is it warm in Oslo?"},
        {"from": "assistant", "value": "[get_weather(town='Oslo')]"},
        {"from": "tool", "value": "warm"},
        {"from": "assistant", "value": "Yes."},
    ]
    row = only(read({"system": f"You may call:\n{listed}. \nIn this format: [f(a=b)]", "conversations": turns}))
    assert calls(row) == [OSLO]
    assert [tool["function"]["name"] for tool in row.tools] == ["get_weather", "get_price", "list_harbours"]
    assert row.trajectory.messages[0].content == "You may call:\n. \nIn this format: [f(a=b)]"


def parallel(*answers: dict[str, Any], names: tuple[str, str] = ("get_weather", "get_weather")) -> dict[str, Any]:
    made = [
        {"id": call_id, "function": {"name": name, "arguments": json.dumps({"town": town})}}
        for call_id, name, town in zip("ab", names, ("Oslo", "Lima"), strict=True)
    ]
    told = [{"role": "tool", **answer} for answer in answers]
    return {"messages": [ASKED, {"role": "assistant", "tool_calls": made}, *told, ANSWERED]}


def test_results_stand_in_the_order_of_their_calls(read):
    cold, hot = {"content": "COLD"}, {"content": "HOT"}
    by_id = parallel({**hot, "tool_call_id": "b"}, {**cold, "tool_call_id": "a"})
    by_name = parallel({**hot, "name": "heat"}, {**cold, "name": "frost"}, names=("frost", "heat"))
    in_order, one_named = parallel(cold, hot), parallel({**hot, "tool_call_id": "b"}, cold)
    for record in (by_id, by_name, in_order, one_named):
        row = only(read(record))
        assert results(row) == ["COLD", "HOT"]
        assert [one.tool_call_id for one in row.trajectory.messages if one.role == "tool"] == ["a", "b"]
    assert "no call of that tool waits" in reason(read(parallel({**cold, "name": "rain"}, hot)))
    wrapped = '<tool_response>{"name": "heat", "content": "HOT"}</tool_response>\n'
    hermes = parallel(
        {"content": wrapped + wrapped.replace("heat", "frost").replace("HOT", "COLD")}, names=("frost", "heat")
    )
    assert results(only(read(hermes))) == ["COLD", "HOT"]


def test_results_of_which_only_some_have_an_id_are_refused(read):
    record = parallel({"content": "x"}, {"content": "y"})
    record["messages"][1]["tool_calls"].append({"id": "c", "function": {"name": "get_weather", "arguments": "{}"}})
    record["messages"].insert(4, {"role": "tool", "content": "z", "tool_call_id": "b"})
    assert "give each its tool_call_id" in reason(read(record))


def test_nulls_mean_the_same_in_jsonl_and_in_parquet(read, tmp_path):
    tools = [
        {
            "name": "f",
            "description": None,
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "b": None}},
        }
    ]
    call = {"id": "a", "function": {"name": "f", "arguments": {"a": "x", "b": None}}}
    record = {
        "messages": [
            {**ASKED, "tool_calls": None, "tool_call_id": None},
            {"role": "assistant", "content": None, "tool_calls": [call], "tool_call_id": None},
            {**RESULT, "tool_calls": None},
            {**ANSWERED, "tool_calls": None, "tool_call_id": None},
        ],
        "tools": tools,
        "label": None,
        "chosen": None,
    }
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "rows.parquet")
    imported = read(record)
    assert imported == import_trajectories(tmp_path / "rows.parquet")
    assert calls(only(imported)) == [("f", '{"a":"x"}')]
    assert only(imported).tools[0]["function"]["parameters"]["properties"] == {"a": {"type": "string"}}
    assert list(imported.unread) == ["calls: nulls in arguments, taken for arguments that were not given"]


def test_one_record_never_ends_the_import(read):
    prompt = {"prompt": "Is it warm?"}
    imported = read({**prompt, "completion": "Yes."}, prompt, {**prompt, "completion": "Yes."}, file_format="trl")
    assert ([bad.number for bad in imported.bad], len(imported.rows)) == ([2], 2)


@pytest.mark.parametrize("name", READ)
def test_a_record_of_nothing_but_a_formats_keys_goes_aside_in_words(read, name):
    keys = {"tau_bench": "traj", "tau2": "messages termination_reason", "xlam": "query answers"}
    keys |= {"trl": "prompt completion", "agentgym": "item_id conversations", "bfcl": "id result"}
    for value in ([], {}, "", 0, [{}], [None], {"messages": 1}, [{"role": "user", "from": 1}]):
        record = dict.fromkeys(keys.get(name, "messages").split(), value)
        if READ[name].matches(record):
            assert reason(read(record, file_format=name))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_packed_files_are_read_and_cut_off_ones_named(tmp_path, pack):
    line = json.dumps({"messages": [ASKED, ANSWERED]}).encode()
    whole, cut = tmp_path / "rows.jsonl.packed", tmp_path / "cut.packed"
    whole.write_bytes(pack(b"\n".join([line] * 3)))
    assert len(import_trajectories(whole).rows) == 3
    cut.write_bytes(pack(b"[" + line * 2000)[:-9])
    with pytest.raises(DataError, match=r"cut\.packed (is packed and cut off|cannot be read|is cut off)"):
        import_trajectories(cut)


@pytest.mark.parametrize("content", ["[1]".encode("utf-16"), '{"messages": []}'.encode("utf-16-le")])
def test_utf16_is_named_with_the_command_that_converts_it(tmp_path, content):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(DataError, match="UTF-16 text by its first bytes: write it as UTF-8"):
        import_trajectories(tmp_path / "rows.jsonl")


def test_a_packed_line_has_the_same_limit(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * (MAX_LINE_BYTES + 2) + b"\n", 1) + gzip.compress(b'{"a": 1}\n'))
    with pytest.raises(DataError):
        import_trajectories(path)
