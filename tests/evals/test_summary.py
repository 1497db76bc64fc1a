from dataclasses import replace

import pytest

from posttrain.evals.summary import evaluated_tasks, summarise, task_record
from posttrain.types import StopReason
from posttrain.worlds.lookups.gold import gold_of
from tests.graded import graded
from tests.worlds.lookups.play import ERROR, PRICE, call, played, result, say, task

TASK = task(PRICE)
GOOD = graded(played(call(), result(), say()), TASK)
GREEDY = graded(played(call("get_hk_company_info"), result(), call(), result(), say()), TASK)
BAD = graded(played(call("get_realtime_quote"), result(), say()), TASK)
ABORTED = played(stop=StopReason.ENGINE_LOST)
BY = ["kind", "difficulty"]


def tasks(*kinds: str, split: str = "test") -> list:
    return [replace(TASK, labels={**TASK.labels, "kind": kind}, split=split) for kind in kinds]


def summary_of(tasks, greedy, sampled) -> dict:
    return summarise(evaluated_tasks(tasks, greedy, sampled, num_samples=4), num_samples=4, by=BY, costs=())


def test_two_tasks_by_hand():
    two = tasks("tool_selection", "tool_retrieval")
    summary = summary_of(two, [GOOD, BAD], [GOOD, GREEDY, BAD, GOOD, *[BAD] * 4])
    assert summary["success_rate"] == summary["end_to_end_success"] == summary["strict_success_rate"] == 0.5
    assert (summary["ci_low"], summary["ci_high"], summary["num_tasks"]) == (0.094531, 0.905469, 2)  # Wilson
    assert [summary[f"pass_hat_{k}"] for k in (1, 2, 4)] == [0.375, 0.25, 0.0]  # (3/4 + 0) / 2, (3/6 + 0) / 2, 0
    assert [summary[f"strict_pass_hat_{k}"] for k in (1, 2)] == [0.25, 0.083333]  # (2/4 + 0) / 2, (1/6 + 0) / 2
    assert "pass_hat_5" not in summary
    assert summary["plan_success"] is None
    assert summary["failures"] == {"wrong_market": 1}
    assert summary["by"]["kind"]["tool_selection"] == {
        "strict_success_rate": 1.0,
        "strict_ci_low": 0.206549,
        "strict_ci_high": 1.0,
        "success_rate": 1.0,
        "ci_low": 0.206549,
        "ci_high": 1.0,
        "num_tasks": 1,
    }
    assert list(summary["by"]["difficulty"]) == ["1"]
    assert summary["paraphrase"] is None


def test_a_success_with_needless_calls_is_no_strict_one():
    summary = summary_of(tasks("tool_selection"), [GREEDY], [GREEDY] * 4)
    assert (summary["success_rate"], summary["strict_success_rate"]) == (1.0, 0.0)
    assert (summary["pass_hat_4"], summary["strict_pass_hat_4"]) == (1.0, 0.0)


def test_a_lost_play_is_counted_apart_and_in_no_rate():
    two = tasks("tool_selection", "tool_selection")
    summary = summary_of(two, [GOOD, ABORTED], [GOOD, GOOD, ABORTED, BAD, *[ABORTED] * 4])
    assert (summary["success_rate"], summary["num_tasks"], summary["num_lost"]) == (1.0, 1, 1)
    assert summary["pass_hat_1"] == 0.666667
    assert summary["num_lost_samples"] == 1


def test_the_means_of_scores_are_of_the_tasks_that_test_them():
    scored = [replace(play, scores=play.outcome.scores) for play in (GOOD, BAD)]
    other = replace(GOOD, scores={"efficiency": 1.0})
    summary = summary_of(tasks("a", "b", "c"), [*scored, other], [GOOD] * 12)
    assert summary["scores"]["tool_selection_accuracy"] == {"mean": 0.5, "std": 0.5, "num_tasks": 2}
    assert (summary["tool_selection_accuracy"], summary["num_tool_tasks"]) == (0.5, 2)
    assert summary["step_efficiency"] == 0.666667  # 1, failed 0, 1
    assert summary["timing_precision"] == 0.75  # 2/2, and 1/2: the call was due, the answer was not


def test_the_paraphrased_split_is_beside_and_never_in_the_numbers():
    both = tasks("tool_selection") + tasks("tool_selection", split="test_paraphrase")
    summary = summary_of(both, [GOOD, BAD], [GOOD] * 4)
    assert (summary["success_rate"], summary["num_tasks"]) == (1.0, 1)
    paraphrase = summary["paraphrase"]
    assert (paraphrase["success_rate"], paraphrase["num_tasks"]) == (0.0, 1)
    assert (paraphrase["ci_low"], paraphrase["ci_high"]) == (0.0, 0.793451)
    noisy = summary_of(both + tasks("tool_selection", split="test_noisy"), [GOOD, BAD, GOOD], [GOOD] * 4)
    assert noisy["paraphrase"] == paraphrase
    assert {split: one["success_rate"] for split, one in noisy["beside"].items()} == {
        "test_paraphrase": 0.0,
        "test_noisy": 1.0,
    }


def test_a_record_holds_what_a_reader_needs_of_a_failure():
    (one,) = evaluated_tasks(
        tasks("tool_selection"), [replace(BAD, reward=-0.15, scores={"completion": 0.0})], [BAD] * 4, num_samples=4
    )
    assert task_record(one, wanted=lambda task: str(gold_of(task))) == {
        "task_id": "t1",
        "split": "test",
        "cell": "tool_selection/hk/en/1",
        "success": False,
        "strict_success": False,
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
    assert task_record(one)["wanted"] == TASK.goal


def test_plan_success_asks_for_every_call_that_holds_the_answer():
    gold = gold_of(TASK)
    two = replace(TASK, goal=replace(gold, calls=(PRICE, replace(PRICE, name="get_hk_company_info"))).to_json())
    whole = played(call(), result(), call("get_hk_company_info"), result(), say("ANSWER: 1 HKD"))
    half = played(call(), result(), call("get_hk_company_info"), result(ERROR), say("ANSWER: 1 HKD"))
    plays = [replace(one, scores=one.outcome.scores) for one in (graded(whole, two), graded(half, two))]
    assert summary_of([two, two], plays, plays * 4)["plan_success"] == 0.5


def test_without_a_test_task_there_is_no_summary():
    with pytest.raises(ValueError, match="a share of nothing"):
        summarise([], num_samples=4, by=BY, costs=())
