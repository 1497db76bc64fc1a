from dataclasses import replace

import pytest

from posttrain.evals.summary import evaluated_tasks, summarise, task_record
from tests.rewards.play import ERROR, PRICE, call, played, result, say, task

GOOD = played(call(), result(), say())
BAD = played(call("get_realtime_quote"), result(), say())
TASK = task(PRICE)


def tasks(*kinds: str, split: str = "test") -> list:
    return [replace(TASK, kind=kind, split=split) for kind in kinds]


def test_two_tasks_by_hand():
    evaluated = evaluated_tasks(
        tasks("tool_selection", "tool_retrieval"), [GOOD, BAD], [GOOD, GOOD, BAD, GOOD, *[BAD] * 4], num_samples=4
    )
    summary = summarise(evaluated, num_samples=4)
    assert summary["success_rate"] == summary["end_to_end_success"] == 0.5
    assert (summary["ci_low"], summary["ci_high"], summary["num_tasks"]) == (0.094531, 0.905469, 2)  # Wilson
    assert [summary[f"pass_hat_{k}"] for k in (1, 2, 4)] == [0.375, 0.25, 0.0]  # (3/4 + 0) / 2, (3/6 + 0) / 2, 0
    assert "pass_hat_5" not in summary
    assert summary["tool_selection_accuracy"] == 0.5
    assert summary["plan_success"] is None
    assert summary["step_efficiency"] == 0.5  # 1 and, failed, 0
    assert summary["timing_precision"] == 0.75  # 2/2, and 1/2: the call was due, the answer was not
    assert {name for name, count in summary["failures"].items() if count} == {"wrong_market"}
    assert summary["by"]["kind"]["tool_selection"] == {
        "success_rate": 1.0,
        "ci_low": 0.206549,
        "ci_high": 1.0,
        "num_tasks": 1,
    }
    assert list(summary["by"]["difficulty"]) == ["1"]
    assert summary["paraphrase"] is None


def test_the_paraphrased_split_is_beside_and_never_in_the_numbers():
    both = tasks("tool_selection") + tasks("tool_selection", split="test_paraphrase")
    summary = summarise(evaluated_tasks(both, [GOOD, BAD], [GOOD] * 4, num_samples=4), num_samples=4)
    assert (summary["success_rate"], summary["num_tasks"]) == (1.0, 1)
    assert summary["paraphrase"] == {"success_rate": 0.0, "ci_low": 0.0, "ci_high": 0.793451, "num_tasks": 1}


def test_a_record_holds_what_a_reader_needs_of_a_failure():
    (one,) = evaluated_tasks(
        tasks("tool_selection"), [replace(BAD, reward=-0.15, scores={"completion": 0.0})], [BAD] * 4, num_samples=4
    )
    assert task_record(one) == {
        "task_id": "t1",
        "split": "test",
        "cell": "tool_selection/hk/en/1",
        "success": False,
        "samples": [0, 0, 0, 0],
        "reward": -0.15,
        "scores": {"completion": 0.0},
        "turns": 2,
        "stop_reason": "done",
        "failure": "wrong_market",
        "transcript": [
            {"role": "user", "content": "Tencent's price and P/E in Hong Kong?"},
            {"role": "assistant", "calls": [["get_realtime_quote", '{"code":"00700.HK"}']]},
            {"role": "tool", "content": '{"price":380.2}'},
            {"role": "assistant", "content": "ANSWER: 380.20 HKD"},
        ],
        "wanted": "380.20 HKD, by get_hk_realtime_quote(code=00700.HK, days=5)",
    }


def test_plan_success_asks_for_every_call_that_holds_the_answer():
    two = [replace(TASK, gold=replace(TASK.gold, calls=(PRICE, replace(PRICE, name="get_hk_company_info"))))] * 2
    whole = played(call(), result(), call("get_hk_company_info"), result(), say("ANSWER: 1 HKD"))
    half = played(call(), result(), call("get_hk_company_info"), result(ERROR), say("ANSWER: 1 HKD"))
    assert (
        summarise(evaluated_tasks(two, [whole, half], [whole] * 8, num_samples=4), num_samples=4)["plan_success"] == 0.5
    )


def test_without_a_test_task_there_is_no_summary():
    with pytest.raises(ValueError, match="a share of nothing"):
        summarise([], num_samples=4)
