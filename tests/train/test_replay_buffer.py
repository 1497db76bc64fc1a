"""The replay buffer: which episodes stay, and what a file must hold to be learnt again."""

from collections import Counter
from dataclasses import replace

import pytest
from test_rejection_sampling import episode
from tiny_runs import run_here

from posttrain.runtime.exits import DataError
from posttrain.train.policy_params import ReplayBufferParams, TaskPart
from posttrain.train.replay_buffer import merged, read_buffer, write_buffer
from posttrain.types import Outcome, ScoredEpisode


def success(task, seed):
    return ScoredEpisode(replace(episode(task, 1.0).trajectory, seed=seed), bonus=0.5)


def buffer(size, keep="uniform"):
    return ReplayBufferParams(size=size, keep=keep)


ALL = [success(f"task {number % 40}", number) for number in range(200)]


@pytest.mark.parametrize("keep", ["uniform", "rare"])
def test_a_buffer_is_ordered_bounded_and_has_no_episode_twice(keep):
    kept = merged(ALL[:150], ALL[100:], buffer(60, keep))
    places = [(one.trajectory.task_id, one.trajectory.seed) for one in kept]
    assert places == sorted(set(places))
    assert len(places) == 60
    assert len(merged(ALL[:150], ALL[100:], buffer(1000, keep))) == 200


def test_a_uniform_buffer_of_buffers_is_the_buffer_of_all_episodes():
    by_runs = []
    for start in range(0, 200, 50):
        by_runs = merged(by_runs, ALL[start : start + 50], buffer(30))
    assert by_runs == merged([], ALL, buffer(30))


def test_every_episode_is_kept_alike_and_rare_tasks_before_common_ones():
    """One task with 100 successes and 100 with one, half of all kept."""
    episodes = [success("common", seed) for seed in range(100)] + [success(f"rare {seed}", seed) for seed in range(100)]
    shares = {
        keep: Counter(one.trajectory.task_id == "common" for one in merged([], episodes, buffer(100, keep)))[True]
        for keep in ("uniform", "rare")
    }
    assert 35 < shares["uniform"] < 65
    assert shares["rare"] <= 5


def test_a_file_has_what_was_written_and_is_refused_under_another_tokenizer(tmp_path):
    file = tmp_path / "experience" / "episodes.parquet"
    write_buffer(file, ALL[:3], tokenizer="a")
    assert read_buffer(file, tokenizer="a") == ALL[:3]
    with pytest.raises(DataError, match="in the tokens of another model"):
        read_buffer(file, tokenizer="b")
    write_buffer(file, [], tokenizer="a")
    assert read_buffer(file, tokenizer="b") == []
    assert read_buffer(tmp_path / "none.parquet", tokenizer="a") == []
    file.write_text("no Parquet")
    with pytest.raises(DataError):
        read_buffer(file, tokenizer="a")


def test_episodes_of_an_earlier_run_are_learnt_beside_those_that_are_played(tmp_path):
    """A run that accepts none of its own still learns from earlier ones, and counts its own."""
    earlier = []
    _, before = run_here("rejection_sampling", tmp_path / "earlier", kept=earlier)
    assert len(earlier) == [line["accepted"] for line in before if "accepted" in line][-1]
    nothing = {"accept": {"type": "success"}, "max_generated_tokens": 20, "rounds": 1}
    won = [replace(one, trajectory=replace(one.trajectory, outcome=Outcome(True, True))) for one in earlier]
    own = []
    _, lines = run_here("rejection_sampling", tmp_path / "own", earlier=won, kept=own, **nothing)
    [line] = (line for line in lines if "accepted" in line)
    assert (line["accepted"], line["played"], own) == (0, 16, [])
    assert line["generated_tokens"] == 32
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]


def test_parts_of_tasks_share_none_and_are_all_of_them():
    parts = [TaskPart(part=number, of=3).of_tasks(list("abcdefg")) for number in (1, 2, 3)]
    assert parts == [list("adg"), list("be"), list("cf")]
    with pytest.raises(ValueError, match="part is 4 of 3"):
        TaskPart(part=4, of=3)
