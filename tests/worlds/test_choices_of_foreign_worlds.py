"""The sections of the worlds that come from elsewhere, as `params.yaml` may have them."""

import pytest
import yaml

from posttrain.worlds.catalog import make_domain, world_params
from posttrain.worlds.gymnasium.params import GymnasiumParams
from posttrain.worlds.http_env.params import HttpEnvParams
from posttrain.worlds.tau2.params import Tau2Params
from posttrain.worlds.verifiers.params import VerifiersParams


@pytest.mark.parametrize(
    ("type_", "section"),
    [
        ("tau2", Tau2Params),
        ("http_env", HttpEnvParams),
        ("gymnasium", GymnasiumParams),
        ("verifiers", VerifiersParams),
    ],
)
def test_the_example_of_each_is_a_section(type_, section):
    assert isinstance(world_params({"type": type_, **yaml.safe_load(section.example)}), section)


def test_a_server_is_not_asked_before_an_episode():
    params = world_params({"type": "http_env", **yaml.safe_load(HttpEnvParams.example)})
    domain = make_domain(params)
    assert [task.task_id for task in domain.tasks("rl", 2)] == ["textcraft/200", "textcraft/201"]
