import torch

from posttrain.rollout.engines.torch_engine import sample

QUARTERS = torch.tensor([0.25, 0.5, 0.25]).log()


def test_a_draw_picks_the_token_whose_share_of_the_line_it_falls_into():
    draws = torch.tensor([0.0, 0.2, 0.25, 0.7, 0.75, 0.9])
    tokens, logprobs = sample(QUARTERS.expand(6, 3), torch.ones(6), draws)
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.allclose(logprobs.exp(), torch.tensor([0.25, 0.25, 0.5, 0.5, 0.25, 0.25]))


def test_temperature_sharpens_the_distribution_that_is_drawn_from_and_reported():
    # at temperature 1/2 probabilities are squared: 1/16, 4/16, 1/16, that is 1/6, 4/6, 1/6
    tokens, logprobs = sample(QUARTERS.expand(2, 3), torch.full((2,), 0.5), torch.tensor([0.16, 0.17]))
    assert tokens.tolist() == [0, 1]
    assert torch.allclose(logprobs.exp(), torch.tensor([1 / 6, 4 / 6]))


def test_temperature_zero_takes_the_most_probable_and_reports_it_at_temperature_one():
    tokens, logprobs = sample(QUARTERS.expand(2, 3), torch.tensor([0.0, 1.0]), torch.tensor([0.9, 0.9]))
    assert tokens.tolist() == [1, 2]
    assert torch.allclose(logprobs.exp(), torch.tensor([0.5, 0.25]))
    assert sample(QUARTERS[None], torch.zeros(1), torch.zeros(1))[0].tolist() == [1]


def test_a_token_of_probability_zero_is_never_drawn_not_even_by_the_largest_draw():
    largest = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    thirds = torch.tensor([float("-inf"), 0.0, 0.0, 0.0, float("-inf")])
    tokens, _ = sample(thirds.expand(2, 5), torch.ones(2), torch.stack([torch.tensor(0.0), largest]))
    assert tokens.tolist() == [1, 3]
