"""Damaged notes of episodes that were paid for: what is changed is played again, and nothing else
is."""

import json

import pytest

from posttrain.rollout.policy import ScriptedPolicy
from posttrain.rollout.resume import resume_episodes
from tests.damages.damaged import NUM_DAMAGES, check, damage, fresh_copy
from tests.rollout.lock_world import LIMITS, LockDomain, Reciter, arguments_of, call, lock_task, say

TASKS = [lock_task(f"t{index}") for index in range(12)]


def play(file):
    """The trajectories, and which tasks were played for them."""
    played = []

    def expert(task, seed):
        played.append(task.task_id)
        return Reciter([call("try_code", arguments_of("123")), say(f"the lock of {task.task_id}\u2028is open 开了")])

    trajectories = resume_episodes(
        ScriptedPolicy(expert), TASKS, file, domain=LockDomain(), limits=LIMITS, seeds=list(range(12))
    )
    return [(one.task_id, one.seed, one.stop_reason, one.messages) for one in trajectories], played


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("played")
    assert play(folder / "played.jsonl")[1] == [task.task_id for task in TASKS]
    lines = (folder / "played.jsonl").read_text().splitlines(keepends=True)
    (folder / "other.jsonl").write_text(lines[0].replace("开", "关"))
    return folder


def test_nothing_is_played_twice(clean):
    assert play(clean / "played.jsonl")[1] == []


def test_what_is_damaged_is_played_again_and_the_rest_is_not(clean, tmp_path, capsys):
    expected, _ = play(clean / "played.jsonl")
    for number in range(NUM_DAMAGES):
        file = fresh_copy(clean, tmp_path / "damaged") / "played.jsonl"
        what = damage(file, number, sibling=file.with_name("other.jsonl"))
        capsys.readouterr()
        if check(lambda: play(file)[0], expected, name="played.jsonl", what=what):  # noqa: B023
            words = capsys.readouterr().err.splitlines()
            assert len(words) <= 1, what
            assert all("played.jsonl" in word and "played again" in word for word in words)
            assert play(file) == (expected, []), f"{what}: and the file is whole again"


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record | {"index": 3},
        lambda record: record | {"index": None},
        lambda record: record | {"messages": record["messages"][:-1]},
        lambda record: record | {"stop_reason": "turn_limit"},
        lambda record: record | {"checksum": None},
        lambda record: [record],
        lambda record: {key: value for key, value in record.items() if key != "checksum"},
        lambda record: {"checksum": record["checksum"]},
    ],
)
def test_a_line_that_was_edited_costs_its_episode_alone(clean, tmp_path, change):
    expected, _ = play(clean / "played.jsonl")
    file = fresh_copy(clean, tmp_path / "damaged") / "played.jsonl"
    first, *rest = file.read_text().split("\n")
    file.write_text("\n".join([json.dumps(change(json.loads(first))), *rest]))
    assert play(file) == (expected, [TASKS[json.loads(first)["index"]].task_id])
