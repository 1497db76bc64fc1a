"""The knobs of the world `bfcl`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from posttrain.runtime.knobs import Frac, PositiveFrac, Section
from posttrain.worlds.params import WorldParams

SetName = Literal["base", "miss_func", "miss_param", "long_context"]


class BfclFlawRates(Section):
    """Share of the demonstrations that show the flaw, where the entry gives the occasion."""

    skipped_call: Frac
    early_call: Frac
    repeated_call: Frac
    malformed_json: Frac


class SplitShares(Section):
    """Shares of the scenarios; all variants of one are in one split. What is left is test's."""

    sft: PositiveFrac
    rl: PositiveFrac
    dev: PositiveFrac

    @model_validator(mode="after")
    def _leaves_some_for_test(self) -> Self:
        if self.sft + self.rl + self.dev >= 1:
            raise ValueError(
                f"sft, rl and dev are {self.sft:g}, {self.rl:g} and {self.dev:g} of the scenarios: "
                "none is left for test; lower one"
            )
        return self


class BfclParams(WorldParams):
    """`sets` are the package's, in the order in which they take turns; `system` is the first
    message, and an empty one is none, as the package has it for a function-calling model."""

    example = (
        "{seed: 7, num_sft_tasks: 300, num_rl_tasks: 200, num_dev_tasks: 80, num_test_tasks: 160, "
        "sets: [base, miss_func, miss_param, long_context], split_shares: {sft: 0.4, rl: 0.3, dev: 0.1}, system: '', "
        "flaw_rates: {skipped_call: 0.2, early_call: 0.3, repeated_call: 0.1, malformed_json: 0.1}}"
    )
    type: Literal["bfcl"]
    sets: Annotated[list[SetName], Field(min_length=1)]
    split_shares: SplitShares
    system: str
    flaw_rates: BfclFlawRates

    @model_validator(mode="after")
    def _names_a_set_once(self) -> Self:
        if len(set(self.sets)) < len(self.sets):
            raise ValueError(f"sets is {', '.join(self.sets)}: one stands there twice, and its tasks would; drop it")
        return self
