import pytest

from posttrain.evals.passk import pass_hat_k


@pytest.mark.parametrize(("k", "value"), [(1, 3 / 4), (2, 3 / 6), (3, 1 / 4), (4, 0.0)])
def test_three_of_four_successes_by_hand(k, value):
    # C(3, k) / C(4, k): 3/4, 3/6, 1/4, 0/1
    assert pass_hat_k([[True, True, False, True]], k) == value


def test_tasks_count_alike():
    assert pass_hat_k([[True] * 4, [True, False]], 2) == 0.5  # (1 + 0) / 2


@pytest.mark.parametrize(("samples", "k"), [([[True, True]], 3), ([], 1), ([[True]], 0)])
def test_more_draws_than_samples_are_refused(samples, k):
    with pytest.raises(ValueError, match="samples of each task"):
        pass_hat_k(samples, k)
