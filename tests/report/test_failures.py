"""Tests of the failures that are counted and shown, and of a hostile transcript."""

from posttrain.report.failures import FailureClass, failure_classes, shortened, shown_failures
from posttrain.report.run_reader import TaskRecord
from tests.report.example import task_record


def record(task_id, failure=None, **changes):
    return TaskRecord.model_validate(task_record(task_id, failure=failure, **changes))


def test_a_class_is_followed_from_before_to_after_on_the_same_tasks():
    before = [record("a", "wrong_market"), record("b", "wrong_market"), record("c"), record("d", "bad_json")]
    after = [record("a"), record("b", "wrong_value"), record("c", "wrong_value"), record("d", "bad_json")]
    assert failure_classes(before, after) == [
        FailureClass("wrong_value", before=0, after=2, repaired=0, num_new=1),
        FailureClass("bad_json", before=1, after=1, repaired=0, num_new=0),
        FailureClass("wrong_market", before=2, after=0, repaired=1, num_new=0),
    ]


def test_classes_stand_by_how_frequent_they_are_after_and_then_before():
    before = [record("a", "gone_once"), record("b", "gone_twice"), record("c", "gone_twice"), record("d", "z")]
    after = [record("a"), record("b"), record("c", "rare"), record("d", "rare")]
    after, before = [*after, record("e", "a_new_one")], [*before, record("e")]
    other = record("f", "reworded", split="test_paraphrase")
    after, before = [*after, other], [*before, other]  # not counted
    assert [row.name for row in failure_classes(before, after)] == ["rare", "a_new_one", "gone_twice", "gone_once", "z"]


def test_every_class_is_shown_before_a_second_of_any_and_then_they_stand_together():
    failures = ["x", "x", "x", "y", None, "z", "y"]
    records = [record(f"t{index}", failure) for index, failure in enumerate(failures)]
    assert [(one["failure"], one["task_id"]) for one in shown_failures(records, 4)] == [
        ("x", "t0"),
        ("x", "t1"),
        ("y", "t3"),
        ("z", "t5"),
    ]
    assert [one["failure"] for one in shown_failures(records[3:], 9)] == ["y", "y", "z"]
    assert [one["failure"] for one in shown_failures(records[5:4:-1] + records[:2], 9)] == ["x", "x", "z"]
    assert shown_failures(records, 0) == []
    assert len(shown_failures(records, 100)) == 6


def test_a_transcript_reads_as_a_conversation_in_its_order():
    [shown] = shown_failures([record("t", "wrong_value", wanted="380.20 HKD")], 1)
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert shown["messages"][1] == {
        "role": "assistant",
        "reasoning": "Hong Kong, so the twin.",
        "calls": [["get_hk_realtime_quote", '{"code": "00700.HK"}']],
    }
    assert shown["wanted"] == "380.20 HKD"


def test_a_very_long_message_is_cut_and_says_how_long_it_was():
    assert shortened("x" * 5000) == "x" * 2000 + " … (5,000 characters)"


def test_half_a_surrogate_pair_does_not_stop_the_report():
    hostile = task_record(
        "t", failure="bad_json", transcript=[{"role": "assistant", "content": "\ud800!", "calls": [["\udfff", "{"]]}]
    )
    [shown] = shown_failures([TaskRecord.model_validate(hostile)], 1)
    assert shown["messages"] == [{"role": "assistant", "text": "?!", "calls": [["?", "{"]]}]
