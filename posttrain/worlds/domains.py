"""Loads the world that `params.yaml` names: one of the library's, or a user's own as
`module:function`."""

from collections.abc import Sequence

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.import_by_name import load_named
from posttrain.runtime.limits import reason
from posttrain.types import Split, Task
from posttrain.worlds.bfcl.params import BfclParams
from posttrain.worlds.grading import GENERAL_SCORES
from posttrain.worlds.gymnasium.params import GymnasiumParams
from posttrain.worlds.http_env.params import HttpEnvParams
from posttrain.worlds.knobs import WorldParams
from posttrain.worlds.protocol import Domain, ExpertDomain, RealisingDomain, ScoringDomain
from posttrain.worlds.stocks.params import StocksParams
from posttrain.worlds.tau2.params import Tau2Params
from posttrain.worlds.toy.domain import ToyDomain
from posttrain.worlds.toy.params import ToyParams


def make_domain(world: WorldParams) -> Domain:
    """The domain that `world.type` names, with its tasks and tools; made once per process. One's
    own is called with its section of `params.yaml`."""
    match world:
        case ToyParams():
            return ToyDomain(world)
        case StocksParams():
            # Imported here: this one needs NumPy and draws thousands of entities, which who plays
            # the toy does not wait for.
            from posttrain.worlds.stocks.domain import StocksDomain

            return StocksDomain(world)
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
    domain: Domain = load_named(world.type, knob="world.type is")(world)
    return domain


def tasks_of(domain: Domain, split: Split, world: WorldParams, *, at_most: int | None = None) -> list[Task]:
    """The tasks of a split: as many as the world's section says, or `at_most`. The paraphrased
    split is as large as the test, or empty. Raises ConfigurationError where the world cannot give
    them."""
    knob = f"num_{split.removesuffix('_paraphrase')}_tasks"
    count = getattr(world, knob)
    try:
        return domain.tasks(split, count if at_most is None else min(at_most, count))
    except ValueError as error:
        raise ConfigurationError(
            f"world.{knob} is {count}, which the world {world.type} cannot give: {reason(error)}"
        ) from error


def with_expert(domain: Domain, *, wanted_by: str) -> ExpertDomain:
    """The domain, which has a scripted expert. Raises ConfigurationError where it has none."""
    if isinstance(domain, ExpertDomain):
        return domain
    raise ConfigurationError(
        f"{wanted_by} needs an expert, and the world {domain.name} has none: it offers tasks, tools and a verdict alone"
    )


def with_new_tasks(domain: Domain, *, wanted_by: str) -> RealisingDomain:
    """The domain, which can ask a question anew. Raises ConfigurationError where it cannot."""
    if isinstance(domain, RealisingDomain):
        return domain
    raise ConfigurationError(
        f"{wanted_by} needs tasks that can be asked anew, and the world {domain.name} has no realise_anew: "
        "set resample_data.oversample.type to duplicate or none"
    )


def score_names(domain: Domain) -> Sequence[str]:
    """What its outcomes hold that `params.yaml` may weigh."""
    return (*GENERAL_SCORES, *(domain.scores if isinstance(domain, ScoringDomain) else ()))
