"""The worlds that `params.yaml` may name, each with its section: the library's by their name, a
team's own by where its code is."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, TypeAdapter

from posttrain.runtime.plain_yaml import load_yaml
from posttrain.worlds.bfcl.params import BfclParams
from posttrain.worlds.gymnasium.params import GymnasiumParams
from posttrain.worlds.http_env.params import HttpEnvParams
from posttrain.worlds.knobs import OwnWorldParams, WorldParams
from posttrain.worlds.stocks.params import StocksParams
from posttrain.worlds.tau2.params import Tau2Params
from posttrain.worlds.toy.params import ToyParams

OWN = "module:function"  # stands for a world of one's own where types are listed
WORLDS = ("stocks", "toy", "bfcl", "tau2", "http_env", "gymnasium")


def _tag(section: Any) -> Any:
    """Which section a world's is, by its type."""
    given = section.get("type") if isinstance(section, dict) else getattr(section, "type", None)
    if not isinstance(given, str) or given in WORLDS:
        return given
    module, colon, function = given.partition(":")
    return OWN if colon and all(part.isidentifier() for part in (*module.split("."), function)) else given


World = Annotated[
    Annotated[StocksParams, Tag("stocks")]
    | Annotated[ToyParams, Tag("toy")]
    | Annotated[BfclParams, Tag("bfcl")]
    | Annotated[Tau2Params, Tag("tau2")]
    | Annotated[HttpEnvParams, Tag("http_env")]
    | Annotated[GymnasiumParams, Tag("gymnasium")]
    | Annotated[OwnWorldParams, Tag(OWN)],
    Field(discriminator=Discriminator(_tag)),
]

_EXAMPLES = {
    "stocks": StocksParams.example,
    "toy": ToyParams.example,
    "bfcl": BfclParams.example,
    "tau2": Tau2Params.example,
    "http_env": HttpEnvParams.example,
    "gymnasium": GymnasiumParams.example,
}
_SECTION: TypeAdapter[WorldParams] = TypeAdapter(World)


def world_params(section: Any) -> WorldParams:
    """The section `world` of a `params.yaml`, or one that was recorded. Raises pydantic's
    ValidationError."""
    return _SECTION.validate_python(section)


def example_params(name: str) -> WorldParams:
    """The section of a world of that type with the knobs of its example. Raises pydantic's
    ValidationError where there is no such type."""
    return world_params({"type": name, **load_yaml(_EXAMPLES.get(name, OwnWorldParams.example), name)})
