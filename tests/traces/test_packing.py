"""Any trajectory at all goes through its rows and comes back, also one that no loop of ours would
make."""

import math
from dataclasses import replace

from posttrain.traces.packing import pack_body, pack_calls, unpack
from posttrain.traces.values import TracedEpisode
from posttrain.types import Message, StopReason, ToolCall, ToolRun, Trajectory, Turn
from tests.traces.drawn import TASK, Draw
from tests.traces.episodes import read, record


def unpacked(traced: TracedEpisode) -> TracedEpisode:
    figures = {name: getattr(traced, name) for name in ("is_success", "advantage", "step", "part")}
    return unpack(pack_body(traced), traced.task, **figures)


def latencies(traced: TracedEpisode) -> list[tuple[float, list[float]]]:
    return [(turn.latency_s, [run.latency_s for run in turn.tool_runs]) for turn in traced.trajectory.turns]


def test_every_field_of_any_episode_comes_back_equal():
    for seed in range(2000):
        traced = Draw(seed).traced()
        assert unpacked(traced) == traced, seed
        assert latencies(unpacked(traced)) == latencies(traced), seed


def test_any_episode_comes_back_equal_from_a_store(tmp_path):
    odd = [replace(Draw(0).traced(), advantage=value) for value in (-0.0, math.inf, -math.inf, 1, 1e300)]
    episodes = [*(Draw(seed).traced() for seed in range(100)), *odd]
    record(tmp_path / "traces.db", "evaluate", episodes)
    assert [read(tmp_path / "traces.db", number + 1).traced for number in range(len(episodes))] == episodes


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


def test_the_agents_calls_are_listed_and_those_put_there_are_not():
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
    assert pack_calls(traced) == {("try_code", "ok"), ("jam", "error"), ("jam", "")}
    assert unpacked(traced) == traced
    without_turns = replace(traced, trajectory=replace(traced.trajectory, turns=()))
    assert pack_calls(without_turns) == {("jam", ""), ("try_code", "")}
