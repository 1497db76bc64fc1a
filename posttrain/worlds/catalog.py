"""Lists the worlds that `params.yaml` may name, and makes their domains.

To add a world, write its package (`params.py` with its section, `domain.py`), name the section in
`World` and the domain in `make_domain`. A world of your own needs neither: `world.type` is then
`module:function`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, get_args

from pydantic import Discriminator, Field, Tag, TypeAdapter

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.import_by_name import load_named
from posttrain.runtime.limits import reason
from posttrain.runtime.plain_yaml import load_yaml
from posttrain.types import SPLITS, Split, Task
from posttrain.worlds.bfcl.params import BfclParams
from posttrain.worlds.brokerage.params import BrokerageParams
from posttrain.worlds.calculator.params import CalculatorParams
from posttrain.worlds.errands.params import ErrandsParams
from posttrain.worlds.grading import CONSENT, GENERAL_SCORES
from posttrain.worlds.gymnasium.params import GymnasiumParams
from posttrain.worlds.http_env.params import HttpEnvParams
from posttrain.worlds.params import OwnWorldParams, WorldParams
from posttrain.worlds.protocol import (
    CostlyDomain,
    Domain,
    ExpertDomain,
    PhrasedDomain,
    RegeneratingDomain,
    ScoringDomain,
)
from posttrain.worlds.state_machine.params import StateMachineParams
from posttrain.worlds.stocks.params import StocksParams
from posttrain.worlds.tau2.params import Tau2Params
from posttrain.worlds.toy.params import ToyParams
from posttrain.worlds.verifiers.params import VerifiersParams

OWN = "module:function"  # the tag of a world of your own, where types are listed


def _tag(section: Any) -> Any:
    """The discriminator: `type` as it stands, or OWN where it is written `module:function`."""
    given = section.get("type") if isinstance(section, dict) else getattr(section, "type", None)
    if not isinstance(given, str):
        return given
    module, colon, function = given.partition(":")
    return OWN if colon and all(part.isidentifier() for part in (*module.split("."), function)) else given


World = Annotated[
    Annotated[StocksParams, Tag("stocks")]
    | Annotated[ToyParams, Tag("toy")]
    | Annotated[BrokerageParams, Tag("brokerage")]
    | Annotated[ErrandsParams, Tag("errands")]
    | Annotated[StateMachineParams, Tag("state_machine")]
    | Annotated[CalculatorParams, Tag("calculator")]
    | Annotated[BfclParams, Tag("bfcl")]
    | Annotated[Tau2Params, Tag("tau2")]
    | Annotated[HttpEnvParams, Tag("http_env")]
    | Annotated[GymnasiumParams, Tag("gymnasium")]
    | Annotated[VerifiersParams, Tag("verifiers")]
    | Annotated[OwnWorldParams, Tag(OWN)],
    Field(discriminator=Discriminator(_tag)),
]
_SECTION: TypeAdapter[WorldParams] = TypeAdapter(World)
_SECTIONS: dict[str, type[WorldParams]] = {
    tag.tag: section for section, tag in map(get_args, get_args(get_args(World)[0]))
}
WORLDS = tuple(name for name in _SECTIONS if name != OWN)


def world_params(section: Any) -> WorldParams:
    """Reads a section `world`. Raises pydantic's ValidationError."""
    return _SECTION.validate_python(section)


def example_params(name: str) -> WorldParams:
    """A world's section with the knobs of its example. Raises pydantic's ValidationError."""
    return world_params({"type": name, **load_yaml(_SECTIONS.get(name, OwnWorldParams).example, name)})


def make_domain(world: WorldParams) -> Domain:  # noqa: C901 — a case for each world
    """The domain of a section; a world of your own is called with it. Domains are imported here,
    because one needs NumPy and others a package that may not be installed; each by its name, so
    that the import graph of a stage shows them."""
    match world:
        case StocksParams():
            from posttrain.worlds.stocks.domain import StocksDomain

            return StocksDomain(world)
        case ToyParams():
            from posttrain.worlds.toy.domain import ToyDomain

            return ToyDomain(world)
        case BrokerageParams():
            from posttrain.worlds.brokerage.domain import BrokerageDomain

            return BrokerageDomain(world)
        case ErrandsParams():
            from posttrain.worlds.errands.domain import ErrandsDomain

            return ErrandsDomain(world)
        case StateMachineParams():
            from posttrain.worlds.state_machine.domain import StateMachineDomain

            return StateMachineDomain(world)
        case CalculatorParams():
            from posttrain.worlds.calculator.domain import CalculatorDomain

            return CalculatorDomain(world)
        case BfclParams():
            from posttrain.worlds.bfcl.domain import BfclDomain

            return BfclDomain(world)
        case Tau2Params():
            from posttrain.worlds.tau2.domain import Tau2Domain

            return Tau2Domain(world)
        case HttpEnvParams():
            from posttrain.worlds.http_env.domain import HttpEnvDomain

            return HttpEnvDomain(world)
        case GymnasiumParams():
            from posttrain.worlds.gymnasium.domain import GymnasiumDomain

            return GymnasiumDomain(world)
        case VerifiersParams():
            from posttrain.worlds.verifiers.domain import VerifiersDomain

            return VerifiersDomain(world)
    domain: Domain = load_named(world.type, knob="world.type is")(world)
    return domain


def require_expert(domain: Domain, *, needed_by: str) -> ExpertDomain:
    """The domain, which must have a scripted expert. Raises ConfigurationError."""
    if isinstance(domain, ExpertDomain):
        return domain
    raise ConfigurationError(
        f"{needed_by} needs an expert, and the world {domain.name} has none: it offers tasks, tools and a verdict alone"
    )


def require_regeneration(domain: Domain, *, needed_by: str) -> RegeneratingDomain:
    """The domain, which must have `regenerate`. Raises ConfigurationError."""
    if isinstance(domain, RegeneratingDomain):
        return domain
    raise ConfigurationError(
        f"{needed_by} needs tasks that can be regenerated, and the world {domain.name} has no regenerate: "
        "set resample_data.oversample.type to duplicate or none"
    )


def score_names(domain: Domain) -> Sequence[str]:
    """The names of the scores in its outcomes, which `params.yaml` may weigh."""
    return (*GENERAL_SCORES, CONSENT, *(domain.scores if isinstance(domain, ScoringDomain) else ()))


def cost_names(domain: Domain) -> Sequence[str]:
    """The names of those scores that are costs: harm done, at 1, whether or not the goal was
    reached. Evaluation shows their rates."""
    return tuple(dict.fromkeys((CONSENT, *(domain.costs if isinstance(domain, CostlyDomain) else ()))))


def splits_of(domain: Domain) -> tuple[Split, ...]:
    """Every world's splits, and this one's own."""
    return (*SPLITS, *(domain.more_splits if isinstance(domain, PhrasedDomain) else ()))


def tasks_of(domain: Domain, split: Split, world: WorldParams, *, at_most: int | None = None) -> list[Task]:
    """The tasks of a split: as many as the world's section says, or `at_most`. `test_paraphrase`
    and `test_noisy` are as large as the test, or empty. Raises ConfigurationError."""
    knob = f"num_{split.partition('_')[0]}_tasks"
    count = getattr(world, knob)
    try:
        return domain.tasks(split, count if at_most is None else min(at_most, count))
    except ValueError as error:
        raise ConfigurationError(
            f"world.{knob} is {count}, which the world {world.type} cannot give: {reason(error)}"
        ) from error
