"""The stock market's section of `params.yaml`."""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.runtime.knobs import Frac, Section
from posttrain.worlds.params import WorldParams

LEVEL_3_TOKENS = 112  # of the longest answer that the third level asks for, by the small model's tokenizer


class StocksFlawRates(Section):
    wrong_market: Frac
    give_up: Frac
    indicator_mixup: Frac
    redundant_call: Frac
    malformed_json: Frac
    market_flip: Frac
    repeated_ask: Frac


class StocksParams(WorldParams):
    """The stock market of `worlds/stocks`."""

    example = (
        "{seed: 7, num_sft_tasks: 6000, num_rl_tasks: 640, num_dev_tasks: 128, num_test_tasks: 480, max_difficulty: 2, "
        "flaw_rates: {wrong_market: 0.85, give_up: 0.7, indicator_mixup: 0.55, redundant_call: 0.1, "
        "malformed_json: 0.03, market_flip: 0.1, repeated_ask: 0.1}}"
    )
    type: Literal["stocks"]
    max_difficulty: Annotated[int, Field(ge=1, le=3)]
    num_wordings: Annotated[int, Field(ge=1, le=6, default=1)]
    languages: Annotated[list[Literal["zh", "en"]], Field(min_length=1, default_factory=lambda: ["zh", "en"])]
    flaw_rates: StocksFlawRates

    @property
    def num_answer_tokens(self) -> int:
        """The least `agent.max_new_tokens` that fits every answer."""
        return LEVEL_3_TOKENS if self.max_difficulty == 3 else 1
