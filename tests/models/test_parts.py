"""Parts of a step side by side: their gradients are those of one backward pass, and the same bits
by one thread and by two."""

import pytest
import torch
from torch import nn

from posttrain.models import parts
from posttrain.models.parts import add_gradients, in_threads, parts_beside


def _gradients(num_threads: int, *, is_before: bool = False) -> tuple[list[torch.Tensor], list[int]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 3))
    unused = nn.Parameter(torch.zeros(2))
    model.register_parameter("unused", unused)
    x = torch.randn(30, 40)
    if is_before:
        model(x).sum().backward()
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with parts_beside(model):
            said = add_gradients(model, lambda rows: (model(rows).pow(2).sum(), len(rows)), x.split(7))
        assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    assert unused.grad is None
    return [weight.grad for weight in model.parameters() if weight is not unused], said


def test_one_thread_and_two_make_the_same_bits():
    (one, said), (two, said_by_two) = _gradients(1), _gradients(2)
    assert said == said_by_two == [7, 7, 7, 7, 2]
    assert all(torch.equal(*both) for both in zip(one, two, strict=True))


@pytest.mark.parametrize("is_before", [False, True], ids=["from nothing", "onto what is there"])
def test_gradients_are_those_of_one_backward_pass_for_each_part(monkeypatch, is_before):
    beside, _ = _gradients(2, is_before=is_before)
    monkeypatch.setattr(parts, "MAX_WEIGHTS", 10)
    in_turn, _ = _gradients(2, is_before=is_before)
    for ours, theirs in zip(beside, in_turn, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_part_that_fails_fails_the_step():
    torch.set_num_threads(1)
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda part: 1 // part, [1, 0, 2]))
