"""What was recorded comes back equal, whatever an agent wrote."""

import sqlite3
from dataclasses import replace
from decimal import Decimal

import pytest

from posttrain.rollout.episode import Episode, Reply
from posttrain.traces.values import TracedEpisode, traced
from posttrain.types import Message, Outcome, StopReason, ToolCall, ToolRun, Trajectory
from posttrain.worlds.lookups.gold import Answer, Gold, GoldCall, gold_of
from tests.rollout.lock_world import LIMITS, LockWorld, arguments_of, call, lock_task, say
from tests.traces.episodes import TRY_123, ids, opened, read, record, spoken, written


def latencies(trajectory: Trajectory):
    return [(turn.latency_s, [run.latency_s for run in turn.tool_runs]) for turn in trajectory.turns]


@pytest.mark.parametrize(
    "episode",
    [
        opened(),
        written((TRY_123, True), ("done", True))[0],
        written(("a b c d e f g h i j", True))[0],
        spoken(call("try_code", arguments_of("000")), say("which lock?"), say("done")),
        spoken(call("jam", "{}")),
        spoken(say("done"), task=replace(lock_task(), agent_name="single_turn")),
    ],
    ids=["two turns", "tokens", "cut off", "error and user", "lost", "single turn"],
)
def test_an_episode_comes_back_as_it_was_recorded(tmp_path, episode):
    scored = replace(episode.trajectory, scores={"completion": 1.0, "format": 0.25}, reward=0.85)
    whole = TracedEpisode(scored, episode.task, is_success=True, advantage=-0.3333333333333333, step=7, part="greedy")
    record(tmp_path / "traces.db", "train_policy", [whole])
    stored = read(tmp_path / "traces.db", 1)
    assert (stored.traced, stored.run.stage) == (whole, "train_policy")
    assert latencies(stored.traced.trajectory) == latencies(scored)


def test_what_nobody_judged_comes_back_as_unknown(tmp_path):
    record(tmp_path / "traces.db", "generate_data", [opened()])
    assert read(tmp_path / "traces.db", 1).traced == opened()


def test_several_calls_of_one_message_keep_their_own_ends(tmp_path):
    two = Message("assistant", tool_calls=(ToolCall("x", "try_code", arguments_of("000")), ToolCall("x", "fly", "{}")))
    episode = spoken(two, call("try_code", arguments_of("123")), say("done"))
    record(tmp_path / "traces.db", "evaluate", [episode])
    turns = read(tmp_path / "traces.db", 1).traced.trajectory.turns
    assert [[(run.call_id, run.name, run.outcome) for run in turn.tool_runs] for turn in turns] == [
        [("call_1", "try_code", "error"), ("call_2", "fly", "error")],
        [("call_3", "try_code", "ok")],
        [],
    ]


def test_chinese_and_half_a_surrogate_pair_come_back(tmp_path):
    name, words = "\ud83d工具", "价格 12.30 \udc00 元"
    odd = Message("assistant", words, "市场: 港股", (ToolCall("x", name, '{"code":"\\ud800"}'),))
    episode = spoken(odd, say("done"))
    record(tmp_path / "traces.db", "evaluate", [episode])
    assert read(tmp_path / "traces.db", 1).traced == episode


def test_an_opening_that_is_not_the_tasks_is_kept(tmp_path):
    task = lock_task()
    other = replace(opened().trajectory, messages=(Message("user", "an imported opening"), say("done")))
    record(tmp_path / "traces.db", "evaluate", [TracedEpisode(replace(other, turns=()), task)])
    assert read(tmp_path / "traces.db", 1).traced.trajectory.messages == other.messages


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


def test_an_end_that_left_a_call_unanswered_comes_back(tmp_path):
    played = opened().trajectory
    cut = replace(
        played,
        messages=(*played.messages[:3], Message("tool", '{"error":"time_limit"}', tool_call_id="call_1")),
        turns=(replace(played.turns[0], tool_runs=()),),
        stop_reason=StopReason.TIME_LIMIT,
    )
    record(tmp_path / "traces.db", "evaluate", [TracedEpisode(cut, lock_task())])
    assert read(tmp_path / "traces.db", 1).traced.trajectory == cut


def test_a_conversation_that_its_program_replaced_comes_back_with_its_forks_and_the_turns_of_its_calls(tmp_path):
    """What the program put into the agent's mouth is neither a turn nor a call of the agent's."""
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


def test_a_retried_call_keeps_its_attempts(tmp_path):
    played = opened().trajectory
    run = ToolRun("call_1", "try_code", "timeout", num_attempts=2, latency_s=20.5)
    slow = replace(played, turns=(replace(played.turns[0], tool_runs=(run,)), *played.turns[1:]))
    record(tmp_path / "traces.db", "evaluate", [TracedEpisode(slow, lock_task())])
    [[found], _] = [turn.tool_runs for turn in read(tmp_path / "traces.db", 1).traced.trajectory.turns]
    assert (found, found.latency_s) == (run, 20.5)


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
