"""Base class and number types of the knobs in `params.yaml`."""

import difflib
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

SLIP = "a number as large as that is taken for a slip of the hand"
Frac = Annotated[float, Field(ge=0, le=1)]
PositiveFrac = Annotated[float, Field(gt=0, le=1)]
# a number of steps, tasks, tokens or characters
Count = Annotated[int, Field(ge=1, le=10_000_000, description=SLIP)]
# a number of things that one step, one model or one task has
SmallCount = Annotated[int, Field(ge=1, le=100_000, description=SLIP)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1, description="a generator takes seeds of 32 bits")]
Rate = Annotated[float, Field(gt=0, lt=1)]  # a learning rate
Below = Annotated[float, Field(gt=0, lt=1)]  # a share of what it was at first that is taken for a collapse
Above = Annotated[float, Field(gt=1)]  # so many times what it was at first
Decay = Annotated[float, Field(ge=0, lt=1)]  # what a memory is worth after each further one
Temperature = Annotated[float, Field(gt=0, le=5)]


class Section(BaseModel):
    """One section of `params.yaml`: immutable, no unknown keys, no silent conversion of a string to
    a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'online'?`, or nothing where none of the known names is spelt alike."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
