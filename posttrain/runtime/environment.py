"""Reads numbers from environment variables: facts of a machine that belong to no run."""

import math
from collections.abc import Mapping

from posttrain.runtime.exits import ConfigurationError


def positive_number(environment: Mapping[str, str], variable: str, default: float, unit: str) -> float:
    """The variable's value, or `default`. Raises ConfigurationError for no positive number."""
    asked = environment.get(variable) or str(default)
    try:
        number = float(asked)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigurationError(f"{variable} is {asked!r}, not a positive number of {unit}; unset it for {default:g}")
    return number
