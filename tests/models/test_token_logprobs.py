import pytest
import torch

from posttrain.models import token_logprobs
from posttrain.models.token_logprobs import IGNORED, agent_logprobs, agent_scores, labels_of, pad_right
from tests.train.tiny import tiny_model

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


def test_a_large_vocabularys_logits_are_never_one_tensor(monkeypatch):
    """Value and gradient are those of one piece; no piece has more than the limit, in the backward
    pass neither."""
    model, rows = tiny_model(), torch.randint(2, 10, (3, 9), generator=torch.Generator().manual_seed(0))

    def scores_and_gradients():
        model.zero_grad()
        found = agent_scores(model, rows, rows, temperature=1.5, with_entropies=True)
        (found.logprobs.sum() + 0.1 * found.entropies.sum()).backward()
        return [found.logprobs, found.entropies, *(weight.grad.clone() for weight in model.parameters())]

    whole, sizes = scores_and_gradients(), []
    vocabulary = model.get_output_embeddings().weight.shape[0]
    monkeypatch.setattr(token_logprobs, "MAX_LOGITS", 5 * vocabulary + 1)
    model.get_output_embeddings().register_forward_hook(lambda *given: sizes.append(given[2].numel()))
    for one, other in zip(scores_and_gradients(), whole, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    assert sizes == [5 * vocabulary] * 4 + [4 * vocabulary] + sizes[5:]
    assert len(sizes) == 10  # each was made anew for the backward pass
