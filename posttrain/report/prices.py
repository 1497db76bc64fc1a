"""Prices of stages' hours, as the user names them."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from posttrain.provenance.costs import Cost
from posttrain.runtime.exits import ConfigurationError

VARIABLE = "POSTTRAIN_PRICE"


@dataclass(frozen=True, slots=True)
class Price:
    """In the user's currency: of an hour of a GPU, and of an hour of a stage that reserves none."""

    gpu_hour: float
    hour: float = 0.0

    def of(self, costs: Iterable[Cost]) -> float:
        """Price of runs of stages."""
        return sum(one.gpu_hours * self.gpu_hour if one.num_gpus else one.all_s / 3600 * self.hour for one in costs)


def asked_price(text: str = "", environment: Mapping[str, str] | None = None) -> Price | None:
    """Price in `text` (`2.50`, or `2.50,0.10`) or else in `POSTTRAIN_PRICE`; None where both are
    empty. Raises ConfigurationError where it is no price."""
    said = text or (os.environ if environment is None else environment).get(VARIABLE, "")
    if not said:
        return None
    try:
        numbers = [float(part) for part in said.split(",")]
    except ValueError:
        numbers = []
    if not 0 < len(numbers) < 3 or not all(0 <= number < math.inf for number in numbers):
        raise ConfigurationError(
            f"{said!r} is no price: the price of a GPU hour, and if wanted a comma and that of an hour without a GPU, "
            "such as 2.50,0.10"
        )
    return Price(*numbers)
