"""The calculator's section of `params.yaml`."""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.runtime.knobs import Frac, Section
from posttrain.worlds.params import WorldParams


class CalculatorFlawRates(Section):
    """Share of the demonstrations that show the flaw."""

    wrong_expression: Frac
    mental_arithmetic: Frac
    redundant_call: Frac
    malformed_json: Frac


class CalculatorParams(WorldParams):
    """The word problems of `worlds/calculator`; `max_difficulty` is the most operations in one."""

    example = (
        "{seed: 7, num_sft_tasks: 600, num_rl_tasks: 128, num_dev_tasks: 64, num_test_tasks: 128, max_difficulty: 2, "
        "flaw_rates: {wrong_expression: 0.3, mental_arithmetic: 0.3, redundant_call: 0.1, malformed_json: 0.03}}"
    )
    type: Literal["calculator"]
    max_difficulty: Annotated[int, Field(ge=1, le=3)]
    flaw_rates: CalculatorFlawRates
