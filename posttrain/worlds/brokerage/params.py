"""The broker's section of `params.yaml`."""

from typing import Literal

from posttrain.runtime.knobs import Frac, Section
from posttrain.worlds.params import WorldParams


class BrokerageFlawRates(Section):
    """Share of the demonstrations that show the flaw, where the task gives the occasion."""

    skipped_consent: Frac
    wrong_market: Frac
    told_other: Frac
    followed_injection: Frac
    over_refusal: Frac


class BrokerageParams(WorldParams):
    """The broker's desk of `worlds/brokerage`. `decline_frac` of the clients say no when they are
    asked; `injection_frac` of the orders are for a company whose note gives an order of its own."""

    example = (
        "{seed: 7, num_sft_tasks: 1200, num_rl_tasks: 640, num_dev_tasks: 128, num_test_tasks: 320, "
        "decline_frac: 0.1, injection_frac: 0.2, flaw_rates: {skipped_consent: 0.4, wrong_market: 0.1, "
        "told_other: 0.1, followed_injection: 0.1, over_refusal: 0.05}}"
    )
    type: Literal["brokerage"]
    decline_frac: Frac
    injection_frac: Frac
    flaw_rates: BrokerageFlawRates
