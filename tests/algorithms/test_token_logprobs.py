import pytest
import torch
from tiny import tiny_model

from posttrain.algorithms.token_logprobs import IGNORED, agent_logprobs, labels_of, pad_right

ROW = [2, 7, 9, 2, 5, 6, 1]
MASK = [0, 0, 0, 0, 1, 0, 1]


def by_hand(model, row):
    """log p(token t+1 | tokens up to t) for every t, from the logits of the unpadded row alone."""
    with torch.no_grad():
        logprobs = model(torch.tensor([row])).logits[0].log_softmax(-1)
    return [float(logprobs[position, token]) for position, token in enumerate(row[1:])]


def test_only_the_agents_tokens_have_a_log_probability():
    model = tiny_model()
    with torch.no_grad():
        found = agent_logprobs(model, torch.tensor([ROW]), torch.tensor([labels_of(ROW, MASK)]))

    expected = [value if is_agents else 0.0 for value, is_agents in zip(by_hand(model, ROW), MASK[1:], strict=True)]
    assert found[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_padding_on_the_right_changes_nothing_without_an_attention_mask():
    model = tiny_model()
    rows = [ROW, [2, 7, 2, 8, 1]]
    masks = [MASK, [0, 0, 0, 1, 1]]
    with torch.no_grad():
        found = agent_logprobs(
            model, pad_right(rows, 0), pad_right([labels_of(*pair) for pair in zip(rows, masks, strict=True)], IGNORED)
        )

    assert found[1].tolist() == pytest.approx([0, 0, *by_hand(model, rows[1])[2:], 0, 0], abs=1e-5)


def test_a_row_of_which_the_agent_wrote_nothing_still_has_a_gradient_of_zero():
    model = tiny_model()
    agent_logprobs(model, torch.tensor([ROW]), torch.full((1, len(ROW)), IGNORED)).sum().backward()

    assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())
