"""Filters, on ten episodes that can be counted by hand."""

import itertools
import time
from dataclasses import replace

import pytest

from posttrain.runtime.exits import ConfigurationError
from posttrain.traces.query import (
    EpisodeFilter,
    count_matching,
    episodes_table,
    others_of_group,
    parse_steps,
    runs_table,
    similar_tool,
)
from posttrain.traces.show import text_table
from posttrain.traces.store import open_to_read
from posttrain.types import Message, StopReason, ToolCall
from tests.rollout.lock_world import arguments_of, call, lock_task, say
from tests.traces.episodes import ids, opened, record, spoken

WRONG = spoken(call("try_code", arguments_of("000")), say("give up"), task=lock_task("wrong"))
ABORTED = spoken(call("jam", "{}"), task=lock_task("lost"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """1 … 6: train_policy, steps 19, 20, 21, 30, 31, 31. 7 and 8: evaluate@sft, greedy and sampled.
    9: evaluate@policy. 10: evaluated_twice."""
    path = tmp_path_factory.mktemp("store") / "traces.db"
    steps = [
        replace(opened(), step=19, is_success=True),
        replace(WRONG, step=20, is_success=False),
        replace(opened(), step=21, is_success=True),
        replace(WRONG, step=30, is_success=False),
        replace(ABORTED, step=31),
        replace(opened(), step=31, is_success=False),
    ]
    record(path, "train_policy", steps, started_at=1.0)
    both = Message(
        "assistant", tool_calls=tuple(ToolCall("x", name, arguments_of("123")) for name in ("try_code", "fly"))
    )
    turn_limit = replace(spoken(say("done")).trajectory, stop_reason=StopReason.TURN_LIMIT)
    record(
        path,
        "evaluate@sft",
        [replace(opened(), part="greedy"), replace(spoken(both, say("done")), part="sampled")],
        started_at=2.0,
    )
    record(path, "evaluate@policy", [replace(opened(), part="greedy", trajectory=turn_limit)], started_at=3.0)
    record(path, "evaluated_twice", [spoken(say("done"))], started_at=4.0)
    return path


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
        ({"is_failed": True}, [6, 5, 4, 2]),
        ({"steps": (20, 30)}, [4, 3, 2]),
        ({"steps": (31, 31)}, [6, 5]),
        ({"stage": "train_policy"}, [6, 5, 4, 3, 2, 1]),
        ({"stage": "evaluate"}, [9, 8, 7]),
        ({"stage": "evaluate@sft"}, [8, 7]),
        ({"stage": "evaluat[e]"}, []),
        ({"run": 2}, [8, 7]),
        ({"part": "greedy"}, [9, 7]),
        ({"tool": "try_code"}, [8, 7, 6, 4, 3, 2, 1]),
        ({"tool": "fly"}, [8]),
        ({"tool": "jam"}, [5]),
        ({"tool": "no_such_tool"}, []),
        ({"tool": "try_code", "tool_outcome": "error"}, [4, 2]),
        ({"tool_outcome": "error"}, [8, 4, 2]),
        ({"tool_outcome": "timeout"}, []),
        ({"stop_reason": "tool_failed"}, [5]),
        ({"task_id": "wro"}, [4, 2]),
        ({"task_id": "*"}, []),
        ({"is_failed": True, "tool": "try_code", "steps": (20, 30)}, [4, 2]),
    ],
)
def test_a_filter_gives_the_episodes_that_meet_all_conditions_newest_first(store, conditions, expected):
    assert ids(store, **conditions) == expected
    connection = open_to_read(store)
    assert count_matching(connection, EpisodeFilter(**conditions)) == len(expected)
    connection.close()


def test_a_list_has_a_row_for_each_episode_in_the_order_asked_for(store):
    connection = open_to_read(store)
    shown = text_table(*episodes_table(connection, [5, 2, 11, 7, 3]))
    connection.close()
    assert shown.splitlines() == [
        "episode  stage                run  step  task   cell  turns  result   stop         reward  advantage",
        "5        train_policy         1    31    lost   lock  1      aborted  tool_failed  -       -",
        "2        train_policy         1    20    wrong  lock  2      failed   done         -       -",
        "7        evaluate@sft greedy  2    -     t      lock  2      -        done         -       -",
        "3        train_policy         1    21    t      lock  2      success  done         -       -",
    ]


def test_rewards_and_advantages_have_three_digits_and_a_hostile_name_one_line(tmp_path):
    played = opened()
    rewarded = replace(played, trajectory=replace(played.trajectory, reward=1.0), advantage=-0.12345)
    record(tmp_path / "traces.db", "x\n\x1b[31m", [rewarded])
    connection = open_to_read(tmp_path / "traces.db")
    _, row = text_table(*episodes_table(connection, [1])).splitlines()
    connection.close()
    assert row.split()[-2:] == ["1.000", "-0.123"]
    assert "x⟨U+000A⟩⟨U+001B⟩[31m" in row


def test_runs_are_counted_newest_first(store):
    connection = open_to_read(store)
    titles, rows = runs_table(connection)
    connection.close()
    listed = [{name: row[titles.index(name)] for name in ("stage", "episodes", "failed")} for row in rows]
    assert [tuple(one.values()) for one in listed] == [
        ("evaluated_twice", "1", "0"),
        ("evaluate@policy", "1", "0"),
        ("evaluate@sft", "2", "0"),
        ("train_policy", "6", "4"),
    ]
    assert rows[0][titles.index("started")] == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(4))


def test_a_group_has_the_others_of_its_run_task_step_and_part(tmp_path):
    places = list(itertools.product(("a", "b"), (None, 1, 2), ("", "greedy"))) * 2
    played = {name: spoken(say("done"), task=lock_task(name)) for name in "ab"}
    for stage in ("one", "other"):
        record(tmp_path / "traces.db", stage, [replace(played[a], step=step, part=part) for a, step, part in places])
    connection = open_to_read(tmp_path / "traces.db")
    found = [others_of_group(connection, number) for number in range(1, 49)]
    connection.close()
    assert found == [[start + (at + 12) % 24] for start in (1, 25) for at in range(24)]


def test_a_misspelt_tool_is_told_from_one_that_matches_nothing(store):
    connection = open_to_read(store)
    assert [similar_tool(connection, name) for name in ("try_cod", "get_quote", "try_code")] == ["try_code", "", None]
    connection.close()


def test_steps_are_one_or_from_to():
    assert [parse_steps(text) for text in (None, "20", "20..30", "7..7")] == [None, (20, 20), (20, 30), (7, 7)]


@pytest.mark.parametrize("text", ["", "a", "20-30", "30..20", "..30", "20..", "-1"])
def test_other_steps_are_refused(text):
    with pytest.raises(ConfigurationError, match="--step is"):
        parse_steps(text)
