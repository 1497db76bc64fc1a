"""Every rule on one small conversation that breaks it and nothing else; then real trajectories and
files that are no demonstrations."""

import json
import random
import socket
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from posttrain.data.files import read_parquet
from posttrain.data.schemas import TASKS_SCHEMA, TrajectoryRow, trajectories_table, write_tasks
from posttrain.data.validation.flat import flatten
from posttrain.data.validation.leakage import NearDuplicates
from posttrain.data.validation.page import render_page
from posttrain.data.validation.validate import Validation, quarantined, refuse_too_many, summary, validate
from posttrain.runtime.control_chars import escape_control_chars
from posttrain.runtime.exits import DataError
from posttrain.types import Message, StopReason, Task, ToolCall, Trajectory
from tests.report.outline import Outline

QUOTE = {
    "type": "function",
    "function": {
        "name": "quote",
        "description": "Price.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["code"],
        },
    },
}
ASKED = Message("user", "腾讯的股价？")
CALLED = Message("assistant", tool_calls=(ToolCall("c1", "quote", '{"code":"00700.HK"}'),))
TOLD = Message("tool", '{"price":380.2}', tool_call_id="c1")
ANSWERED = Message("assistant", "ANSWER: 380.20 HKD")
GOOD = (Message("system", "rules"), ASKED, CALLED, TOLD, ANSWERED)
NO_TASKS = TASKS_SCHEMA.empty_table()


def row(*messages: Message, task_id: str = "t1", entities: tuple[str, ...] = ("tencent",)) -> TrajectoryRow:
    played = Trajectory(task_id, messages, StopReason.DONE)
    return TrajectoryRow(played, {"language": "zh"}, "sft", "price", entities, (QUOTE,))


def call(arguments: str, name: str = "quote") -> Message:
    return Message("assistant", tool_calls=(ToolCall("c1", name, arguments),))


def verdict_of(*rows: TrajectoryRow, tasks: pa.Table = NO_TASKS, max_tokens: int = 100) -> Validation:
    return validate([trajectories_table(rows)], [tasks], max_tokens=max_tokens, source=Path("d.parquet"))


def reasons_of(*messages: Message) -> dict[str, tuple[int, ...]]:
    verdict = verdict_of(row(*messages))
    return {reason.rule: reason.turns for reason in verdict.reasons.get(0, ())}


def test_a_paired_and_answered_conversation_is_kept():
    assert reasons_of(*GOOD) == {}


def test_several_calls_in_one_message_may_be_answered_in_any_order():
    both = Message(
        "assistant", tool_calls=(ToolCall("c1", "quote", '{"code":"a"}'), ToolCall("c2", "quote", '{"code":"b"}'))
    )
    assert (
        reasons_of(
            ASKED, both, Message("tool", "2", tool_call_id="c2"), Message("tool", "1", tool_call_id="c1"), ANSWERED
        )
        == {}
    )


BROKEN = [
    ((ASKED, CALLED, TOLD, CALLED, TOLD, ANSWERED), {"unique_call_id": (0, 1)}),
    ((ASKED, CALLED), {"call_answered": (0,)}),
    (
        (ASKED, CALLED, replace(TOLD, tool_call_id="c9"), ANSWERED),
        {"call_answered": (0,), "results_asked_for": (0,)},
    ),
    ((ASKED, CALLED, TOLD, TOLD, ANSWERED), {"call_answered": (0,)}),
    ((ASKED, ANSWERED, TOLD), {"roles_alternate": (), "results_asked_for": (0,)}),
    ((ASKED, TOLD, ANSWERED), {"roles_alternate": ()}),
    ((ASKED, ANSWERED, ANSWERED), {"roles_alternate": ()}),
    ((ASKED, ASKED, ANSWERED), {"roles_alternate": ()}),
    ((ANSWERED,), {"roles_alternate": ()}),
    ((ASKED,), {"roles_alternate": ()}),
    ((), {"roles_alternate": ()}),
    ((ASKED, Message("critic", "good"), ANSWERED), {"roles_alternate": ()}),  # type: ignore[arg-type]
    ((ASKED, Message("assistant", " \n")), {"says_something": (0,)}),
    ((ASKED, call('{"code":"00700'), TOLD, ANSWERED), {"arguments_parse": (0,)}),
    ((ASKED, call('["00700.HK"]'), TOLD, ANSWERED), {"arguments_parse": (0,)}),
    ((ASKED, call("[" * 100_000), TOLD, ANSWERED), {"arguments_parse": (0,), "length_limit": ()}),
    ((ASKED, call("{}"), TOLD, ANSWERED), {"arguments_fit": (0,)}),
    ((ASKED, call('{"code":700}'), TOLD, ANSWERED), {"arguments_fit": (0,)}),
    ((ASKED, call('{"code":"x","days":"5"}'), TOLD, ANSWERED), {"arguments_fit": (0,)}),
    ((ASKED, call('{"code":"x","market":"hk"}'), TOLD, ANSWERED), {"arguments_fit": (0,)}),
    ((ASKED, call('{"code":"x"}', "trade"), TOLD, ANSWERED), {"tool_offered": (0,)}),
    ((ASKED, replace(ANSWERED, content="1" * 101)), {"length_limit": ()}),
]


@pytest.fixture(scope="module")
def judged():
    """All of `BROKEN` in one file: each takes Great Expectations a fifth of a second by itself."""
    return verdict_of(*(row(*messages, task_id=f"t{number}") for number, (messages, _) in enumerate(BROKEN)))


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_what_breaks_a_rule_is_named_with_its_turns(judged, number):
    assert {reason.rule: reason.turns for reason in judged.reasons[number]} == BROKEN[number][1]


def test_great_expectations_counts_what_the_reasons_say(judged):
    """Expectations count rows of a table, reasons name trajectories."""
    counted = {check.rule.name: check.num_trajectories for check in judged.checked if check.num_broken}
    assert counted == judged.counts()
    whole = [check for check in judged.checked if check.rule.table == "trajectories"]
    assert all(check.num_broken == check.num_trajectories for check in whole)


def test_a_tool_that_the_user_describes_later_is_offered():
    """BFCL adds functions so. A name that only stands somewhere offers none."""
    described = Message("user", '[{"name": "trade", "description": "Buy.", "parameters": {"type": "object"}}] And now?')
    traded = call('{"code":"x"}', "trade")
    assert reasons_of(ASKED, ANSWERED, described, traded, TOLD, ANSWERED) == {}
    assert reasons_of(Message("user", 'call "trade"'), traded, TOLD, ANSWERED) == {"tool_offered": (0,)}
    other = verdict_of(row(ASKED, ANSWERED, described, ANSWERED), row(ASKED, traded, TOLD, ANSWERED))
    assert other.counts() == {"tool_offered": 1}


HELLO = Message("assistant", "Hello! How can I help?")


def test_an_agent_may_greet_and_a_user_may_speak_behind_a_result():
    assert reasons_of(GOOD[0], HELLO, *GOOD[1:]) == {}
    assert reasons_of(ASKED, CALLED, TOLD, Message("user", "and?"), ANSWERED) == {}
    assert reasons_of(GOOD[0], HELLO) == {"roles_alternate": ()}
    assert reasons_of(HELLO, *GOOD[1:]) == {"roles_alternate": ()}  # no template begins with the agent


@pytest.mark.parametrize("end", [StopReason.STOP_TOOL, StopReason.WORLD_OVER])
def test_nobody_waits_for_the_result_of_the_call_that_ended_an_episode(end):
    ended = row(ASKED, CALLED)
    ended = replace(ended, trajectory=replace(ended.trajectory, stop_reason=end))
    assert verdict_of(ended).reasons == {}
    early = row(ASKED, CALLED, CALLED, TOLD)
    early = replace(early, trajectory=replace(early.trajectory, stop_reason=end))
    assert {reason.rule for reason in verdict_of(early).reasons[0]} >= {"call_answered"}


def test_a_result_is_paired_within_its_own_turn_and_trajectory():
    first = row(ASKED, CALLED, task_id="t1")
    second = row(ASKED, ANSWERED, TOLD, task_id="t2")  # the result of the first trajectory's call, one trajectory late
    verdict = verdict_of(first, second)
    assert [[reason.rule for reason in verdict.reasons[position]] for position in (0, 1)] == [
        ["call_answered"],
        ["roles_alternate", "results_asked_for"],
    ]


def test_of_equal_conversations_the_first_is_kept_whatever_their_ids():
    again = (
        ASKED,
        replace(CALLED, tool_calls=(replace(CALLED.tool_calls[0], id="x"),)),
        replace(TOLD, tool_call_id="x"),
        ANSWERED,
    )
    verdict = verdict_of(row(*GOOD[1:]), row(*again, task_id="t2"), row(*GOOD[1:]))
    assert list(verdict.is_kept) == [True, False, False]
    assert [reason.rule for reason in verdict.reasons[1]] == ["no_duplicate"]
    assert [reason.rule for reason in verdict.reasons[2]] == ["unique_id", "no_duplicate"]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"task_id": "t1"}, "no_held_out_task"),
        ({"messages": (Message("system", "x"), Message("user", "  腾讯 的股价?"))}, "no_held_out_text"),
        ({"entities": ("hsbc", "tencent")}, "no_held_out_entity"),
    ],
)
@pytest.mark.parametrize("split", ["dev", "test", "test_paraphrase"])
def test_nothing_of_a_held_out_task_is_learnt(changed, rule, split, toy_tasks, tmp_path):
    other = replace(toy_tasks["test"][0], split=split, task_id="t9", entities=("hsbc",))
    path = tmp_path / "tasks.parquet"
    write_tasks(path, [replace(other, **changed)])
    verdict = verdict_of(row(*GOOD), tasks=read_parquet(path, TASKS_SCHEMA))
    assert [reason.rule for reason in verdict.reasons[0]] == [rule]


def test_the_training_split_is_not_held_out(toy_tasks: dict[str, list[Task]], tmp_path):
    path = tmp_path / "tasks.parquet"
    write_tasks(path, [replace(toy_tasks["sft"][0], task_id="t1", entities=("tencent",), messages=GOOD[:2])])
    assert verdict_of(row(*GOOD), tasks=read_parquet(path, TASKS_SCHEMA)).reasons == {}


def test_the_length_estimate_counts_four_letters_a_han_character_or_a_digit_as_one():
    # 腾讯的股价？ 6; quote 2 and {"code":"00700.HK"} 15, which is {":":" 5, code 1, 00700. 6,
    # HK 1, "} 2; {"price":380.2} 12, which is {" 2, price 2, ": 2, 380.2 5, } 1; ANSWER: 380.20 HKD
    # 10, which is ANSWER 2, : 1, 380.20 6, HKD 1. The system message is free.
    assert flatten(trajectories_table([row(*GOOD)]))["trajectories"]["tokens_estimate"].to_pylist() == [
        6 + 2 + 15 + 12 + 10
    ]


def test_the_toy_worlds_demonstrations_pass_but_for_malformed_json_and_tools_not_offered(toy_rows):
    verdict = verdict_of(*toy_rows, max_tokens=1024)
    malformed = sum(
        any(_is_malformed(call.arguments) for message in row.trajectory.messages for call in message.tool_calls)
        for row in toy_rows
    )
    assert malformed > 0
    assert verdict.counts()["arguments_parse"] == malformed
    assert set(verdict.counts()) <= {"arguments_parse", "tool_offered"}
    assert summary(verdict)["num_kept"] == int(verdict.is_kept.sum()) == len(toy_rows) - len(verdict.reasons)


def test_quarantine_holds_the_whole_row_and_why():
    verdict = verdict_of(row(*GOOD), row(ASKED, CALLED, task_id="t2"))
    (bad,) = quarantined(verdict, [trajectories_table([row(*GOOD), row(ASKED, CALLED, task_id="t2")])])
    assert bad["position"] == 1
    assert bad["reasons"] == [{"rule": "call_answered", "turns": [0]}]
    assert bad["row"]["messages"][1]["tool_calls"][0]["function"] == {
        "name": "quote",
        "arguments": '{"code":"00700.HK"}',
    }


@pytest.mark.parametrize(
    "tools",
    [
        ({"name": "quote"},),
        ({"function": {"name": "quote", "parameters": {"type": "text"}}},),
        ({"function": {"name": "quote", "parameters": {"properties": ["code"]}}},),
        ({"function": {"name": 7}},),
    ],
)
def test_a_row_whose_schemas_are_none_goes_alone(tools):
    verdict = verdict_of(row(*GOOD), replace(row(ASKED, CALLED, TOLD, replace(ANSWERED, content="x")), tools=tools))
    assert {position: [reason.rule for reason in reasons] for position, reasons in verdict.reasons.items()} == {
        1: ["tools_have_schemas"]
    }


def test_a_schema_is_judged_without_fetching_what_it_refers_to(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was made"))
    remote = {"type": "object", "properties": {"code": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    tool = {"type": "function", "function": {"name": "quote", "parameters": remote}}
    assert verdict_of(replace(row(*GOOD), tools=(tool,))).reasons == {}


@pytest.mark.parametrize(
    ("schema", "code", "is_kept"),
    [
        ({"type": "string", "pattern": "^[0-9]{5}[.]HK$"}, "00700.HK", True),
        ({"type": "string", "pattern": "^[0-9]{5}[.]HK$"}, "HK", False),
        ({"type": "string", "pattern": "(((a{1,99}){1,99}){1,99}){1,99}!"}, "a" * 3000, True),  # of years
        ({"type": "string", "pattern": "("}, "x", True),
        ({"$ref": "#/properties/code"}, "x", True),  # without an end
        ({"$ref": "#/$defs/0"}, 5, True),  # of 2^60 steps
        ({"$ref": "#/$defs/day"}, "May", False),
        ({"$ref": "#/$defs/day", "minLength": 9}, "2026-11-27", True),
        ({"type": "object", "properties": {"$ref": {"type": "integer"}}}, {"$ref": "x"}, False),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "pattern": "^(a|aa)+$"},
            "a" * 60 + "b",
            True,
        ),
    ],
)
def test_a_schema_is_judged_within_a_bound(schema, code, is_kept):
    doubling = {str(level): {"allOf": [{"$ref": f"#/$defs/{level + 1}"}] * 2} for level in range(60)}
    day = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}
    parameters = {
        "type": "object",
        "properties": {"code": schema},
        "$defs": {**doubling, "60": {"type": "integer"}, "day": day},
    }
    tool = {"type": "function", "function": {"name": "quote", "parameters": parameters}}
    start = time.monotonic()
    called = call(json.dumps({"code": code}))
    verdict = verdict_of(replace(row(ASKED, called, TOLD, ANSWERED), tools=(tool,)), max_tokens=1000)
    assert [reason.rule for reason in verdict.reasons.get(0, ())] == ([] if is_kept else ["arguments_fit"])
    assert time.monotonic() - start < 10


def test_an_agent_that_writes_control_marks_is_not_learnt_from():
    answers = [
        replace(ANSWERED, content="ANSWER: 1<|end|><|user|>more"),
        replace(ANSWERED, reasoning_content="so <tool_call>{}</tool_call>"),
        replace(ANSWERED, content="[INST] hello [/INST]"),
        replace(ANSWERED, content="<｜Assistant｜>"),
    ]
    rows = [row(ASKED, CALLED, TOLD, answer, task_id=f"t{number}") for number, answer in enumerate(answers)]
    reasons = verdict_of(*rows).reasons
    assert [{reason.rule: reason.turns for reason in reasons[number]} for number in range(len(rows))] == [
        {"no_control_marks": ()}
    ] * len(rows)


def test_control_marks_in_arguments_are_found_behind_jsons_escapes_and_those_of_others_do_no_harm():
    escaped = call('{"code":"\\u003c|im_end|\\u003e"}')
    assert reasons_of(ASKED, escaped, TOLD, ANSWERED) == {"no_control_marks": ()}
    assert (
        reasons_of(Message("user", "<|im_end|> means?"), replace(ANSWERED, content="a < b || c > d, <b>it</b>")) == {}
    )


HELD_OUT = "What is the price of Pine Crane in Hong Kong?"


SPOKEN = {  # and whether it is the question
    "What is the price of Pine\u200bCrane in Hong\ufeff Kong": True,
    "Hi there! What is the price of Pine Crane in Hong Kong? Thanks a lot \U0001f64f": True,
    "ｗhat IS the price of Pine Crane in Hong Kong": True,
    "What is the price of Pine Crane": True,  # without its end
    "What is the price of Oak Lane in Hong Kong?": False,
    "price": False,
    "": False,
}


@pytest.mark.parametrize("is_later", [False, True])
def test_a_held_out_question_is_known_behind_a_greeting_and_zero_width_spaces(is_later, toy_tasks, tmp_path):
    path = tmp_path / "tasks.parquet"
    held_out = replace(toy_tasks["test"][0], task_id="t9", entities=("hsbc",), messages=(Message("user", HELD_OUT),))
    write_tasks(path, [held_out])
    before = (Message("user", "Hello"), Message("assistant", "How can I help?")) if is_later else ()
    rows = [
        row(*before, Message("user", spoken), replace(ANSWERED, content=f"ANSWER: {number}"), task_id=f"asked-{number}")
        for number, spoken in enumerate(SPOKEN)
    ]
    verdict = verdict_of(*rows, tasks=read_parquet(path, TASKS_SCHEMA))
    found = [[reason.rule for reason in verdict.reasons.get(number, ())] for number in range(len(rows))]
    assert found == [["no_held_out_text"] if is_leak else [] for is_leak in SPOKEN.values()]


def test_alike_texts_are_found_as_a_comparison_of_all_pairs_finds_them():
    draw = random.Random(3)
    texts = ["".join(draw.choice("ab") for _ in range(draw.randrange(1, 60))) for _ in range(400)]
    held_out, asked = texts[:200], texts[200:] + [f"ab{text}" for text in texts[:100]]

    def is_alike(inner: str, outer: str) -> bool:
        return inner in outer and len(inner) >= 12 and (len(inner) >= len(outer) / 2 or len(inner) >= 96)

    index = NearDuplicates(held_out)
    expected = [
        any(text == held or is_alike(text, held) or is_alike(held, text) for held in held_out) for text in asked
    ]
    assert [index.has(text) for text in asked] == expected
    assert 0 < sum(expected) < len(expected)


def test_too_many_bad_rows_stop_the_run_with_the_count_of_each_reason():
    rows = [
        row(*GOOD),
        row(ASKED, CALLED, task_id="t2"),
        row(ASKED, call("{}"), TOLD, ANSWERED),
        row(ASKED, call("{"), TOLD, ANSWERED, task_id="t4"),
    ]
    verdict = verdict_of(*rows)
    refuse_too_many(verdict, max_quarantine_frac=0.75, source=Path("d.parquet"))
    with pytest.raises(DataError) as caught:
        refuse_too_many(verdict, max_quarantine_frac=0.5, source=Path("d.parquet"))
    for part in ("3 of 4 demonstrations in d.parquet (75.0%)", "arguments_fit 1, arguments_parse 1, call_answered 1"):
        assert part in str(caught.value)
    assert caught.value.code == 65


def test_a_run_with_nothing_good_stops_at_any_share():
    with pytest.raises(DataError, match=r"1 of 1 demonstrations in d\.parquet \(100\.0%\)"):
        refuse_too_many(verdict_of(row(ASKED, CALLED)), max_quarantine_frac=1.0, source=Path("d.parquet"))


def test_an_empty_file_is_refused():
    with pytest.raises(DataError, match=r"^d\.parquet holds 0 demonstrations: there is nothing to learn from"):
        verdict_of()


def test_the_page_is_the_same_to_the_byte_loads_nothing_and_escapes_what_agents_wrote():
    rows = [row(*GOOD), row(Message("user", "<script>alert(1)</script>"), CALLED, task_id="t2")]
    pages = [render_page(verdict_of(*rows), [trajectories_table(rows)], max_quarantine_frac=0.5) for _ in range(2)]
    assert pages[0] == pages[1]
    for loading in ("<script", "http:", "https:", "src=", "@import", "url("):
        assert loading not in pages[0]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in pages[0]
    assert "1 (50.0%) are in quarantine" in pages[0]


def test_the_page_spells_out_what_a_reader_could_not_see():
    hostile = "\x1b[2J\x9b31m\u202egnp.exe\u2066\u200b\ufeff it\nis"
    call = Message("assistant", hostile, hostile, (ToolCall("call_1", hostile, hostile),))
    rows = [row(*GOOD), row(Message("user", hostile), call, task_id=hostile)]
    shown = Outline(render_page(verdict_of(*rows), [trajectories_table(rows)], max_quarantine_frac=0.5)).text
    assert shown.count("⟨U+001B⟩[2J⟨U+009B⟩31m⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+200B⟩⟨U+FEFF⟩") >= 5
    assert escape_control_chars(shown) == shown


def _is_malformed(arguments: str) -> bool:
    return not arguments.endswith("}")
