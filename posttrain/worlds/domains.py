"""Loads the world that `params.yaml` names: one of the library's, or a user's own as
`module:function`."""

from posttrain.named import load_named
from posttrain.params import WorldParams
from posttrain.worlds.protocol import Domain
from posttrain.worlds.toy import ToyDomain


def make_domain(world: WorldParams) -> Domain:
    """The domain that `world.type` names, with its tasks and tools; made once per process. One's
    own is called with the WorldParams."""
    match world.type:
        case "toy":
            return ToyDomain(world)
        case "stocks":
            # Imported here: the stock market needs NumPy and draws 7,600 companies, which who plays
            # the toy does not wait for.
            from posttrain.worlds.stocks.domain import StocksDomain

            return StocksDomain(world)
        case name:
            domain: Domain = load_named(name, knob="world.type is")(world)
            return domain
