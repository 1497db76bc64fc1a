"""Episodes in a file are not run again; those whose lines cannot be read are."""

import json

import pytest

from posttrain.rollout.episodes import resume_episodes
from posttrain.rollout.policy import ScriptedPolicy
from posttrain.runtime.exits import ConfigurationError
from tests.damages.damaged import NUM_DAMAGES, check, damage, fresh_copy
from tests.rollout.lock_world import LIMITS, LockDomain, ScriptedExpert, arguments_of, call, lock_task, say

TASKS = [lock_task(f"t{index}") for index in range(12)]


def run(file, *, tasks=TASKS, is_refused=lambda task: False):
    """The trajectories, and the tasks that were run for them."""
    made = []

    def expert(task, seed):
        if is_refused(task):
            raise ConfigurationError("the endpoint refuses")
        made.append(task.task_id)
        return ScriptedExpert(
            [call("try_code", arguments_of("123")), say(f"the lock of {task.task_id}\u2028is open 开了")]
        )

    seeds = list(range(len(tasks)))
    policy = ScriptedPolicy(expert)
    trajectories = resume_episodes(policy, tasks, file, domain=LockDomain(), limits=LIMITS, seeds=seeds)
    return [(one.task_id, one.seed, one.stop_reason, one.messages) for one in trajectories], made


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resumed")
    assert run(folder / "episodes.jsonl")[1] == [task.task_id for task in TASKS]
    return folder


def test_no_episode_is_run_twice(clean):
    assert run(clean / "episodes.jsonl")[1] == []


def test_episodes_that_ended_before_an_error_are_kept(clean, tmp_path):
    file = tmp_path / "new" / "episodes.jsonl"
    with pytest.raises(ConfigurationError):
        run(file, is_refused=lambda task: task.task_id == "t7")
    kept = [json.loads(line)["task_id"] for line in file.read_bytes().splitlines()]
    assert run(file) == (run(clean / "episodes.jsonl")[0], [task.task_id for task in TASKS if task.task_id not in kept])


def test_an_episode_of_another_task_or_order_is_not_taken(clean, tmp_path):
    file = fresh_copy(clean, tmp_path / "copy") / "episodes.jsonl"
    assert run(file, tasks=[TASKS[1], TASKS[0], *TASKS[2:]])[1] == ["t1", "t0"]


def test_a_damaged_file_is_read_or_refused_and_whole_again(clean, tmp_path):
    for number in range(NUM_DAMAGES):
        file = fresh_copy(clean, tmp_path / "damaged") / "episodes.jsonl"
        what = damage(file, number)
        if check(lambda: run(file)[0], None, name="episodes.jsonl", what=what, is_part=lambda found: len(found) == 12):  # noqa: B023
            assert run(file)[1] == [], f"{what}: and the file is whole again"


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record | {"index": None},
        lambda record: record | {"index": 3},
        lambda record: record | {"stop_reason": "no such reason"},
        lambda record: [record],
        lambda record: {"index": 0},
    ],
)
def test_a_line_that_cannot_be_read_costs_its_episode_alone(clean, tmp_path, change):
    expected, _ = run(clean / "episodes.jsonl")
    file = fresh_copy(clean, tmp_path / "damaged") / "episodes.jsonl"
    first, *rest = file.read_text().split("\n")
    file.write_text("\n".join([json.dumps(change(json.loads(first))), *rest]))
    assert run(file) == (expected, [json.loads(first)["task_id"]])
