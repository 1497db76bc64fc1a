"""The worlds of others keep the contract, as `posttrain check-world` tries it."""

from collections import Counter

import pytest

from posttrain.rewards.params import RewardParams
from posttrain.rewards.total import load_reward
from posttrain.world_check.check import check_world
from posttrain.world_check.tasks import counts_of
from posttrain.worlds.catalog import example_params, make_domain, score_names

pytestmark = pytest.mark.needs_worlds
REWARD = {
    "weights": {"completion": 0.6, "strictness": 0.25, "format": 0.15},
    "penalties": {"redundant_call": -0.01, "format_error": -0.005, "timeout": -0.01},
    "extra": [],
}


@pytest.mark.parametrize(
    ("name", "num_tasks", "states"),
    [
        ("bfcl", 8, {"ok": 11, "not tried": 1}),
        ("gymnasium", 8, {"ok": 8, "not tried": 4}),
        ("tau2", 2, {"ok": 10, "not tried": 2}),
    ],
)
def test_each_keeps_it(name, num_tasks, states):
    section = example_params(name)
    rule = load_reward(RewardParams.model_validate(REWARD), score_names(make_domain(section)))
    found = check_world(lambda: make_domain(section), counts_of(section, num_tasks), rule, section=section)
    assert [finding for finding in found.findings if finding.state == "FAILED"] == []
    assert Counter(finding.state for finding in found.findings) == states
