from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig, Qwen3Config

from posttrain.models import token_logprobs
from posttrain.models.token_logprobs import (
    IGNORED,
    agent_logprobs,
    agent_scores,
    labels_of,
    pad_right,
    refuse_unknown_head,
)
from posttrain.runtime.exits import ConfigurationError
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


SHAPE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
FAMILIES = {
    "gemma2": Gemma2Config(**SHAPE, final_logit_softcapping=0.7),
    "granite": GraniteConfig(**SHAPE, logits_scaling=0.125),
    "cohere": CohereConfig(**SHAPE, logit_scale=5.0),
    "qwen3 with a head of its own": Qwen3Config(**SHAPE, tie_word_embeddings=False),
}


def of_family(name):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(FAMILIES[name]).eval()


def plain(model, ids, temperature):
    """Log-probabilities and entropies from all logits of the model's own forward pass."""
    logprobs = (model(ids).logits.float() / temperature).log_softmax(-1)[:, :-1]
    return logprobs.gather(2, ids[:, 1:, None])[..., 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("name", FAMILIES)
def test_values_and_gradients_are_those_of_all_logits_at_once_also_scaled_and_capped_ones(monkeypatch, name):
    model, ids = of_family(name), torch.randint(1, 50, (2, 11), generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(token_logprobs, "MAX_LOGITS", 3 * 50)
    weights, found = list(model.parameters()), []
    for scores in (plain(model, ids, 1.3), agent_scores(model, ids, ids, temperature=1.3, with_entropies=True)):
        gradients = torch.autograd.grad(scores[0].sum() - 0.2 * scores[1].square().sum(), weights, allow_unused=True)
        found.append([*scores, *(one for one in gradients if one is not None)])
    for own, ours in zip(*found, strict=True):
        largest = max(1.0, float(own.detach().abs().max()))  # of a tensor's numbers, which are sums
        torch.testing.assert_close(ours, own, atol=1e-6 * largest, rtol=1e-5)
    refuse_unknown_head(model)


def test_logits_that_are_changed_in_an_unknown_way_are_refused():
    model = of_family("qwen3 with a head of its own")
    own = model.forward
    model.forward = lambda **given: SimpleNamespace(logits=3 * own(**given).logits)
    with pytest.raises(ConfigurationError, match=r"type 'qwen3' gives .* Take a model of another family"):
        refuse_unknown_head(model)


def test_adapters_on_the_head_are_computed_and_learnt():
    """The library refuses them; a caller's own model may have some."""
    torch.manual_seed(0)
    model = get_peft_model(
        of_family("qwen3 with a head of its own"), LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    )
    ids = torch.randint(1, 50, (1, 9), generator=torch.Generator().manual_seed(1))
    (own, _), ours = plain(model, ids, 1.0), agent_logprobs(model, ids, ids)
    torch.testing.assert_close(ours, own, atol=1e-6, rtol=1e-5)
    ours.sum().backward()
    assert all(one.grad.any() for one in model.parameters() if one.requires_grad)
