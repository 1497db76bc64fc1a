"""Tasks, tools, demonstrations and scores of the library's worlds, byte for byte: a change of them
makes every trained model another, so it needs a reason."""

import hashlib

import pytest

from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import expert_policy
from posttrain.types import SPLITS
from posttrain.worlds.catalog import make_domain
from tests.limits import limits_of
from tests.worlds_of import stocks_params, toy_params


@pytest.mark.parametrize(
    ("params", "digest"),
    [
        (stocks_params(max_difficulty=3), "ba5dbbd18048b7ef"),
        (toy_params(max_difficulty=3), "89a402aebcbf931c"),
    ],
    ids=["stocks", "toy"],
)
def test_tasks_tools_demonstrations_and_scores_are_these(params, digest):
    domain = make_domain(params)
    found = [tool.schema() for tool in domain.tools.values()]
    for split in SPLITS:
        tasks = domain.tasks(split, 60)
        for is_flawless in (True, False):
            policy = expert_policy(domain, is_flawless=is_flawless, reasoning_frac=0.5)
            seeds = list(range(len(tasks)))
            played = run_episodes(policy, tasks, domain=domain, limits=limits_of(8, 64, 2048), seeds=seeds)
            found += [tasks, [(one.messages, one.outcome) for one in played]]
    assert hashlib.sha256(repr(found).encode()).hexdigest()[:16] == digest
