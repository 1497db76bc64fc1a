"""Any trajectory at all goes through its rows and comes back, also one that no loop of ours would
make."""

import contextlib
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

import pytest

from posttrain.traces.packing import pack, unpack
from posttrain.traces.reading import read_episode
from posttrain.traces.store import open_to_read, open_to_write
from posttrain.traces.values import TracedEpisode
from posttrain.types import Message, StopReason, ToolCall, ToolRun, Trajectory, Turn
from tests.traces.drawn import TASK, Draw
from tests.traces.episodes import record


def unpacked(traced: TracedEpisode) -> TracedEpisode:
    """Through the columns of a store, and through SQLite's own types."""
    packed = pack(traced)
    connection = sqlite3.connect(":memory:")
    row: dict[str, object] = {}
    for table, values in (("episodes", (1, 1, 1, 1, *packed.episode)), ("bodies", (1, *packed.body))):
        row |= dict(zip(COLUMNS[table], through(connection, values), strict=True))
    turns, calls = ([through(connection, values) for values in rows] for rows in (packed.turns, packed.calls))
    return unpack(row, traced.task, turns, calls)


def through(connection: sqlite3.Connection, values: Sequence[object]) -> tuple[object, ...]:
    return connection.execute(f"SELECT {', '.join('?' * len(values))}", tuple(values)).fetchone()


@pytest.fixture(scope="module", autouse=True)
def columns(tmp_path_factory):
    connection = open_to_write(tmp_path_factory.mktemp("store") / "traces.db")
    for table in ("episodes", "bodies"):
        COLUMNS[table] = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    connection.close()


COLUMNS: dict[str, list[str]] = {}


def latencies(traced: TracedEpisode) -> list[tuple[float, list[float]]]:
    return [(turn.latency_s, [run.latency_s for run in turn.tool_runs]) for turn in traced.trajectory.turns]


def test_every_field_of_any_episode_comes_back_equal():
    for seed in range(2000):
        traced = Draw(seed).traced()
        assert unpacked(traced) == traced, seed
        assert latencies(unpacked(traced)) == latencies(traced), seed


def test_any_episode_comes_back_equal_from_a_store(tmp_path):
    odd = [replace(Draw(0).traced(), advantage=value) for value in (-0.0, math.inf, -math.inf, 1, 1e300)]
    episodes = [*(Draw(seed).traced() for seed in range(300)), *odd]
    record(tmp_path / "traces.db", "evaluate", episodes)
    with contextlib.closing(open_to_read(tmp_path / "traces.db")) as connection:
        assert [read_episode(connection, number + 1).traced for number in range(len(episodes))] == episodes


def test_every_field_differs_among_the_episodes_drawn():
    """Or a new field that is forgotten would come back as its default, and equal."""
    drawn = [Draw(seed).traced() for seed in range(200)]
    for one in (
        drawn,
        [traced.trajectory for traced in drawn],
        [turn for traced in drawn for turn in traced.trajectory.turns],
    ):
        same = [name for name in one[0].__slots__ if len({repr(getattr(value, name)) for value in one}) == 1]
        assert same in ([], ["task"], ["task_id"])


def test_a_call_belongs_to_the_turn_that_wrote_it_and_one_put_there_to_none():
    """Messages: system, user, planted call, its result, own call (turn 1), its result, planted
    word, own word with a call (turn 2) never answered."""
    planted, own, last = (
        ToolCall(name, tool, "{}") for name, tool in (("x", "jam"), ("call_2", "try_code"), ("call_3", "jam"))
    )
    messages = (
        *TASK.messages,
        Message("assistant", tool_calls=(planted,)),
        Message("tool", "1", tool_call_id="x"),
        Message("assistant", tool_calls=(own,)),
        Message("tool", "2", tool_call_id="call_2"),
        Message("assistant", "noted"),
        Message("assistant", "so", tool_calls=(last,)),
    )
    turns = (Turn(9, 3, 0, 4, (ToolRun("call_2", "try_code", "ok"), ToolRun("", "jam", "error"))), Turn(5, 2, 0, 7))
    traced = TracedEpisode(Trajectory("t", messages, StopReason.TIME_LIMIT, turns=turns, num_forks=1), TASK)
    assert [(number, turn, name, outcome) for number, turn, name, outcome, *_ in pack(traced).calls] == [
        (1, 1, "try_code", "ok"),
        (2, 1, "jam", "error"),
        (3, 2, "jam", None),
    ]
    assert unpacked(traced) == traced
    without_turns = replace(traced, trajectory=replace(traced.trajectory, turns=()))
    assert [turn for _, turn, *_ in pack(without_turns).calls] == [1, 2, 4]
