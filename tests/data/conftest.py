"""The toy world's demonstrations, as the first stage makes them: the scripted expert with its flaws
on the sft split."""

from collections.abc import Callable, Sequence

import pytest

from posttrain.data.schemas import TrajectoryRow, trajectory_row
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import expert_policy
from posttrain.types import Task, Trajectory
from posttrain.worlds.toy.domain import ToyDomain
from posttrain.worlds.toy.params import ToyFlawRates, ToyParams
from tests.limits import limits_of

FLAWS = ToyFlawRates(
    wrong_shop=0.65,
    give_up=0.6,
    look_alike=0.6,
    redundant_call=0.1,
    malformed_json=0.03,
    shop_flip=0.1,
    repeated_ask=0.1,
)
AGENT = limits_of(6, 64, 1024)
Replay = Callable[[Sequence[Task], Sequence[int]], list[Trajectory]]


@pytest.fixture(scope="session")
def toy() -> ToyDomain:
    sizes = {"num_sft_tasks": 400, "num_rl_tasks": 40, "num_dev_tasks": 20, "num_test_tasks": 40}
    return ToyDomain(ToyParams(type="toy", seed=7, max_difficulty=2, flaw_rates=FLAWS, **sizes))


@pytest.fixture(scope="session")
def replay(toy: ToyDomain) -> Replay:
    expert = expert_policy(toy, is_flawless=False, reasoning_frac=0.3)
    return lambda tasks, seeds: run_episodes(expert, tasks, domain=toy, limits=AGENT, seeds=seeds)


@pytest.fixture(scope="session")
def toy_tasks(toy: ToyDomain) -> dict[str, list[Task]]:
    return {"sft": toy.tasks("sft", 400), "dev": toy.tasks("dev", 20), "test": toy.tasks("test", 40)}


@pytest.fixture(scope="session")
def toy_rows(toy: ToyDomain, toy_tasks: dict[str, list[Task]], replay: Replay) -> list[TrajectoryRow]:
    tasks = toy_tasks["sft"]
    played = replay(tasks, range(len(tasks)))
    return [trajectory_row(trajectory, task, toy.tools) for trajectory, task in zip(played, tasks, strict=True)]
