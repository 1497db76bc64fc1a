"""Recorded episodes come back equal, whatever an agent wrote."""

import sqlite3
from dataclasses import replace
from decimal import Decimal

import pytest

from posttrain.rollout.episode import Episode, Reply
from posttrain.traces.values import TracedEpisode, traced
from posttrain.types import Message, Outcome, StopReason, ToolRun
from posttrain.worlds.lookups.gold import Answer, Gold, GoldCall, gold_of
from tests.rollout.lock_world import LIMITS, LockWorld, arguments_of, call, lock_task, say
from tests.traces.episodes import ids, opened, read, record, spoken


def test_a_task_is_stored_once_and_its_goal_to_the_letter(tmp_path):
    gold = Gold(
        Answer("number", Decimal("12.30"), "HKD"), (GoldCall("try_code", {"code": ("123", None)}),), asks="market"
    )
    task = replace(lock_task(), goal=gold.to_json(), entities=("red",))
    record(tmp_path / "traces.db", "evaluate", [spoken(say("done"), task=task)] * 3)
    record(tmp_path / "traces.db", "evaluate", [spoken(say("done"), task=task)], uid="second")
    assert str(gold_of(read(tmp_path / "traces.db", 3).traced.task).answer.value) == "12.30"
    assert read(tmp_path / "traces.db", 4).traced.task == task
    assert sqlite3.connect(tmp_path / "traces.db").execute("SELECT count(*) FROM tasks").fetchone() == (1,)


def test_a_conversation_that_its_program_replaced_comes_back_with_its_forks_and_the_turns_of_its_calls(tmp_path):
    """Messages that the program wrote in the agent's name are neither a turn nor a call of the
    agent's."""
    task = lock_task()
    episode = Episode("e", task, LockWorld(task), 5, LIMITS)
    episode.add_reply(Reply(say("which lock?")))
    summary = [
        Message("user", "so far"),
        call("jam", "{}"),
        Message("tool", "nothing", tool_call_id="as the model likes"),
    ]
    episode.go_on_from([*summary, Message("user", "go on")], episode.now.schemas)
    made = episode.add_reply(Reply(call("try_code", arguments_of("123"))))
    episode.add_results([("open", ToolRun(made.tool_calls[0].id, "try_code", "ok"))])
    episode.add_reply(Reply(say("done")))
    trajectory = episode.trajectory(StopReason.DONE)
    assert (trajectory.num_forks, [turn.message_index for turn in trajectory.turns]) == (1, [4, 6])
    record(tmp_path / "traces.db", "evaluate", [TracedEpisode(trajectory, task)])
    assert read(tmp_path / "traces.db", 1).traced.trajectory == trajectory
    assert (ids(tmp_path / "traces.db", tool="try_code"), ids(tmp_path / "traces.db", tool="jam")) == ([1], [])


def test_an_episode_that_is_not_there_is_none(tmp_path):
    record(tmp_path / "traces.db", "evaluate", [opened()])
    assert read(tmp_path / "traces.db", 2) is None


def test_as_many_tasks_as_trajectories():
    with pytest.raises(ValueError, match="zip"):
        traced([opened().trajectory] * 2, [lock_task()])
    failed = replace(opened().trajectory, outcome=Outcome(False, False))
    [one] = traced([failed], [lock_task()], advantages=[0.5], step=3)
    assert (one.is_failed, one.advantage, one.step) == (True, 0.5, 3)


def test_whether_it_succeeded_is_the_outcomes_to_say_and_unknown_where_there_is_none():
    played = opened().trajectory
    outcomes = (Outcome(True, False), Outcome(False, False), None)
    found = traced([replace(played, outcome=outcome) for outcome in outcomes], [lock_task()] * 3)
    assert [one.is_success for one in found] == [True, False, None]


def test_lost_is_failed_whatever_was_judged():
    assert spoken(call("jam", "{}"), limits=LIMITS.model_copy(update={"max_aborted_frac": 1.0})).is_failed
    assert not opened().is_failed
