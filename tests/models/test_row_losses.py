import math

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import posttrain.models.row_losses as module
from posttrain.models.codec import TokenRow
from posttrain.models.row_losses import row_losses
from tests.tiny import CONFIG


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**CONFIG, vocab_size=20)).eval()


def token_row(ids: list[int], mask: list[int]) -> TokenRow:
    return TokenRow(ids, mask, [0] * len(ids))


ROWS = [
    token_row([3, 4, 5, 6, 7], [0, 0, 1, 1, 0]),
    token_row([8, 9], [0, 1]),
    token_row([1, 2, 3], [0, 0, 0]),
    token_row([5, 4, 3, 2], [0, 1, 0, 1]),
]


def alone(model, row: TokenRow) -> float:
    """Mean of −log p over the agent's tokens, each token predicted from the ones before it."""
    with torch.inference_mode():
        logprobs = model(torch.tensor([row.input_ids])).logits[0].log_softmax(-1)
    losses = [
        -float(logprobs[index - 1, row.input_ids[index]]) for index in range(1, len(row.input_ids)) if row.mask[index]
    ]
    return sum(losses) / len(losses) if losses else 0.0


@pytest.mark.parametrize("batch_tokens", [1, 6, 4096])
def test_a_rows_loss_is_the_mean_over_the_agents_tokens_whatever_stands_beside_it(model, monkeypatch, batch_tokens):
    monkeypatch.setattr(module, "BATCH_TOKENS", batch_tokens)
    np.testing.assert_allclose(row_losses(model, ROWS, pad_id=0), [alone(model, row) for row in ROWS], rtol=1e-5)


def test_a_model_that_knows_nothing_loses_the_logarithm_of_its_vocabulary(model):
    blank = Qwen2ForCausalLM(model.config)
    torch.nn.init.zeros_(blank.get_output_embeddings().weight)
    assert row_losses(blank, ROWS[:1], pad_id=0)[0] == pytest.approx(math.log(20))


def test_progress_ends_at_the_number_of_rows(model):
    seen: list[tuple[int, int]] = []
    row_losses(model, ROWS, pad_id=0, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (4, 4)
