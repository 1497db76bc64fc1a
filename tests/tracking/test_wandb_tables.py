import json

import pytest

from posttrain.tracking.wandb_tables import EPISODES, show_page, shown_evaluation
from tests.report.example import evaluation
from tests.tracking.offline_runs import offline_runs

pytest.importorskip("wandb")
KEY = "sk-proj-0123456789abcdefABCDEF0123456789"
TRANSCRIPT = [
    {"role": "user", "content": "价格?"},
    {"role": "assistant", "reasoning": "HK", "calls": [["get_quote", '{"code":"1"}']]},
    {"role": "tool", "content": f"\x1b[2J {KEY} 19.1"},
    {"role": "assistant", "content": "ANSWER: 19.1"},
]


def record(task_id: str, failure: str | None = None) -> dict:
    return {
        "task_id": task_id,
        "split": "test",
        "cell": "tool_selection/a/zh/1",
        "success": failure is None,
        "strict_success": failure is None and task_id == "one",
        "samples": [1, 0],
        "reward": 0.5,
        "scores": {},
        "turns": 2,
        "stop_reason": "done",
        "failure": failure,
        "transcript": TRANSCRIPT,
    }


def test_an_evaluation_is_its_figures_every_episode_and_the_failing_classes(tree, stage):
    figures = {**evaluation(0.75), "failures": {"wrong_tool": 1, "bad_json": 0}}
    with shown_evaluation(stage("evaluate", "policy")) as show:
        show(figures, [record("one"), record("two", "wrong_tool"), record("three")])

    (run,) = offline_runs(tree / ".posttrain")
    assert (run.run.job_type, run.run.display_name, run.exit_code) == ("evaluate", "evaluate@policy", 0)
    assert (run.summary["success_rate"], run.summary["failures"]) == (0.75, {"wrong_tool": 1, "bad_json": 0})
    assert run.table("failing_classes_table") == [["wrong_tool", 1], ["bad_json", 0]]
    assert [row[:-1] for row in run.table("episodes")] == [
        ["one", "tool_selection/a/zh/1", "test", True, True, 0.5, 2, None],
        ["two", "tool_selection/a/zh/1", "test", False, False, 0.5, 2, "wrong_tool"],
        ["three", "tool_selection/a/zh/1", "test", False, True, 0.5, 2, None],
    ]
    assert EPISODES[-1] == "transcript"


def test_a_transcript_is_visible_and_has_no_key(tree, stage):
    with shown_evaluation(stage("evaluate", "policy")) as show:
        show(evaluation(0.75), [record("one")])

    (run,) = offline_runs(tree / ".posttrain")
    assert run.table("episodes")[0][-1].splitlines() == [
        "[user] 价格?",
        "[assistant, reasoning] HK",
        '[assistant, call] get_quote {"code":"1"}',
        "[tool] ⟨U+001B⟩[2J [key removed] 19.1",
        "[assistant] ANSWER: 19.1",
    ]


def test_tables_wait_for_wandb_sync_below_the_state_folder_and_not_in_the_home(tree, stage, monkeypatch):
    monkeypatch.setenv("HOME", str(tree / "home"))
    with shown_evaluation(stage("evaluate", "policy")) as show:
        show(evaluation(0.75), [record("one")])

    tables = [path for path in tree.rglob("*") if path.is_file() and b'"transcript"' in path.read_bytes()]
    assert len(tables) > 1, "of the run, and of the artifact that wandb makes of it"
    assert all(path.is_relative_to(tree / ".posttrain/wandb") for path in tables)


def test_an_evaluation_that_fails_is_a_failed_run(tree, stage):
    with pytest.raises(RuntimeError), shown_evaluation(stage("evaluate", "policy")):
        raise RuntimeError("the engine is gone")

    (run,) = offline_runs(tree / ".posttrain")
    assert run.exit_code == 1


def test_the_report_is_shown_byte_by_byte(tree, stage):
    page = "<!doctype html>\n<title>报告</title><p>x</p>\n"
    show_page(stage("report"), page)

    (run,) = offline_runs(tree / ".posttrain")
    (line,) = run.history
    assert (run.folder / "files" / line["report"]["path"]).read_text(encoding="utf-8") == page
    assert (run.run.job_type, line["report"]["_type"]) == ("report", "html-file")


def test_nothing_is_shown_when_wandb_is_disabled(tree, stage, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with shown_evaluation(stage("evaluate", "policy")) as show:
        show(json.loads("{}"), [])
    show_page(stage("report"), "")
    assert not (tree / ".posttrain").exists()
