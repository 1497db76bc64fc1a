"""The sections of `params.yaml` that tests make worlds of: small, with today's knobs."""

from posttrain.worlds.catalog import world_params
from posttrain.worlds.stocks.params import StocksParams
from posttrain.worlds.toy.params import ToyParams

TOY_FLAWS = {
    "wrong_shop": 0.65,
    "give_up": 0.5,
    "look_alike": 0.5,
    "redundant_call": 0.1,
    "malformed_json": 0.03,
    "shop_flip": 0.1,
    "repeated_ask": 0.1,
}
STOCKS_FLAWS = {
    "wrong_market": 0.85,
    "give_up": 0.7,
    "indicator_mixup": 0.55,
    "redundant_call": 0.1,
    "malformed_json": 0.03,
    "market_flip": 0.1,
    "repeated_ask": 0.1,
}
_COUNTS = {"num_sft_tasks": 1, "num_rl_tasks": 1, "num_dev_tasks": 1, "num_test_tasks": 1}


def toy_params(*, max_difficulty: int = 2, seed: int = 7, **knobs: object) -> ToyParams:
    section = {"type": "toy", "seed": seed, "max_difficulty": max_difficulty, "flaw_rates": TOY_FLAWS}
    params = world_params({**_COUNTS, **section, **knobs})
    assert isinstance(params, ToyParams)
    return params


def stocks_params(*, max_difficulty: int = 2, seed: int = 7, **knobs: object) -> StocksParams:
    section = {"type": "stocks", "seed": seed, "max_difficulty": max_difficulty, "flaw_rates": STOCKS_FLAWS}
    params = world_params({**_COUNTS, **section, **knobs})
    assert isinstance(params, StocksParams)
    return params
