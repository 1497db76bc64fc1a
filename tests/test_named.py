import pytest

from posttrain.exits import ConfigurationError
from posttrain.named import load_named
from posttrain.params import WorldParams
from posttrain.worlds.domains import make_domain
from posttrain.worlds.toy import ToyDomain

COUNTS = {"max_difficulty": 1, "num_sft_tasks": 1, "num_rl_tasks": 1, "num_dev_tasks": 1, "num_test_tasks": 1}


def test_a_name_is_a_function_or_a_class_of_a_module():
    assert load_named("posttrain.worlds.toy:ToyDomain", knob="world.type is") is ToyDomain


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("toy", "written module:function"),
        ("no_such_module:f", r"cannot be imported \(No module named"),
        ("posttrain.types:nothing", "'nothing' is not there"),
        ("posttrain.types:KINDS", "'KINDS' is a tuple"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_with_the_knob_and_the_reason(name, reason):
    with pytest.raises(ConfigurationError, match=f"world.type is '{name}'.*{reason}"):
        load_named(name, knob="world.type is")


def test_a_world_of_ones_own_is_made_of_the_world_section():
    world = WorldParams(type="posttrain.worlds.toy:ToyDomain", seed=7, **COUNTS)
    domain = make_domain(world)
    assert domain.tasks("dev", 3) == ToyDomain(WorldParams(type="toy", seed=7, **COUNTS)).tasks("dev", 3)
