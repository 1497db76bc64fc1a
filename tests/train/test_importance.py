import math

import pytest
import torch

from posttrain.train.losses import importance_weights
from posttrain.train.online.metrics import importance_metrics, turn_numbers


def test_the_importance_weight_is_worked_out_by_hand():
    weights = importance_weights(torch.tensor([-1.0, -2.0, -1.0]), torch.tensor([-2.0, -1.0, -1.0]), cap=2.0)
    assert weights.tolist() == pytest.approx([2.0, 1 / math.e, 1.0])  # e is capped
    metrics = importance_metrics([0.0, 1.0, -0.5], [1, 1, 2], cap=2.0)
    assert metrics == {
        "importance_mean": pytest.approx((1 + 2 + math.exp(-0.5)) / 3),
        "importance_max": 2.0,
        "importance_capped_frac": 1 / 3,
        "logprob_gap_max": 1.0,
        "logprob_gap_turn": 0.5,  # of 0 and 1 in the first turn, and of -0.5 in the second
    }


def test_a_token_belongs_to_the_turn_that_it_was_written_in():
    is_scored = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 1, 0, 1]]).bool()
    assert turn_numbers(is_scored)[is_scored].tolist() == [1, 1, 2, 1, 2, 3]
