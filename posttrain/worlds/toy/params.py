"""The toy's section of `params.yaml`."""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.runtime.knobs import Frac, Section
from posttrain.worlds.params import WorldParams


class ToyFlawRates(Section):
    wrong_shop: Frac
    give_up: Frac
    look_alike: Frac
    redundant_call: Frac
    malformed_json: Frac
    shop_flip: Frac
    repeated_ask: Frac


class ToyParams(WorldParams):
    """The two shops of `worlds/toy`."""

    example = (
        "{seed: 7, num_sft_tasks: 600, num_rl_tasks: 64, num_dev_tasks: 64, num_test_tasks: 64, max_difficulty: 2, "
        "flaw_rates: {wrong_shop: 0.5, give_up: 0.5, look_alike: 0.5, redundant_call: 0.1, malformed_json: 0.03, "
        "shop_flip: 0.1, repeated_ask: 0.1}}"
    )
    type: Literal["toy"]
    max_difficulty: Annotated[int, Field(ge=1, le=3)]
    flaw_rates: ToyFlawRates
