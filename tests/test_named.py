import pytest

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.import_by_name import load_named
from posttrain.worlds.catalog import make_domain, world_params
from posttrain.worlds.toy.domain import ToyDomain
from tests.worlds_of import toy_params

SECTION = toy_params(max_difficulty=1).model_dump()


def test_a_name_is_a_function_or_a_class_of_a_module():
    assert load_named("posttrain.worlds.toy.domain:ToyDomain", knob="world.type is") is ToyDomain


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("toy", "written module:function"),
        ("no_such_module:f", r"cannot be imported \(No module named"),
        ("posttrain.types:nothing", "'nothing' is not there"),
        ("posttrain.types:SPLITS", "'SPLITS' is a tuple"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_with_the_knob_and_the_reason(name, reason):
    with pytest.raises(ConfigurationError, match=f"world.type is '{name}'.*{reason}"):
        load_named(name, knob="world.type is")


def make_toy(section):
    """A world of one's own, which reads its own knobs off the section."""
    return ToyDomain(toy_params(seed=section.seed, max_difficulty=section.max_difficulty))


def test_a_world_of_ones_own_is_made_of_the_world_section_with_its_own_knobs():
    domain = make_domain(world_params({**SECTION, "type": "tests.test_named:make_toy"}))
    assert domain.tasks("dev", 3) == make_domain(world_params(SECTION)).tasks("dev", 3)
    assert domain.tasks("dev", 3) != make_domain(world_params({**SECTION, "seed": 8})).tasks("dev", 3)
