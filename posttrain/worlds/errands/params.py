"""The errands' section of `params.yaml`."""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.runtime.knobs import Frac, Section
from posttrain.worlds.params import WorldParams


class ErrandsFlawRates(Section):
    """Share of the demonstrations that show the flaw."""

    no_note: Frac
    wrong_item: Frac


class ErrandsParams(WorldParams):
    """The long conversations of `worlds/errands`: `num_questions` lie between the fact and its
    use."""

    example = (
        "{seed: 7, num_sft_tasks: 600, num_rl_tasks: 64, num_dev_tasks: 64, num_test_tasks: 64, num_questions: 18, "
        "flaw_rates: {no_note: 0.5, wrong_item: 0.05}}"
    )
    type: Literal["errands"]
    num_questions: Annotated[int, Field(ge=2, le=64)]
    flaw_rates: ErrandsFlawRates
