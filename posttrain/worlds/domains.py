"""Which world does `params.yaml` name? The one place that knows them all; a new world is one more case."""

from posttrain.params import WorldParams
from posttrain.worlds.protocol import Domain
from posttrain.worlds.toy import ToyDomain


def make_domain(world: WorldParams) -> Domain:
    """The domain that `world.type` names, with its tasks and tools; made once per process."""
    match world.type:
        case "toy":
            return ToyDomain(world)
        case "stocks":
            # Imported here: the stock market needs NumPy and draws 7,600 companies, which who plays the toy does not wait for.
            from posttrain.worlds.stocks.domain import StocksDomain

            return StocksDomain(world)
