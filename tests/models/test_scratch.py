import pytest
import torch
from transformers import PreTrainedTokenizerFast

from posttrain.models.scratch import scratch_model
from tests.models.episodes import SCRATCH_PARAMS

NUM_TOKENS = 40


@pytest.mark.parametrize(("head", "places_back"), [(0, 1), (1, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_the_first_heads_of_the_first_layer_look_one_and_two_tokens_back(
    head: int, places_back: int, seed: int, scratch_tokenizer: PreTrainedTokenizerFast
) -> None:
    """Whatever the tokens are, before any training."""
    params = SCRATCH_PARAMS.model_copy(update={"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "hidden_size": 96})
    model = scratch_model(params, tokenizer=scratch_tokenizer, max_context_tokens=256, seed=seed)
    model.set_attn_implementation("eager")
    token_ids = torch.randint(len(scratch_tokenizer), (1, NUM_TOKENS), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        attention_T_T = model(input_ids=token_ids, output_attentions=True).attentions[0][0, head]
    queries = torch.arange(places_back, NUM_TOKENS)
    looked_at = attention_T_T[queries].argmax(-1)
    assert (looked_at == queries - places_back).float().mean() > 0.9


def test_what_makes_them_look_back_says_nothing_about_the_next_token(
    scratch_tokenizer: PreTrainedTokenizerFast,
) -> None:
    """The constant stands in every row of the tied embedding, so it moves all logits alike."""
    model = scratch_model(SCRATCH_PARAMS, tokenizer=scratch_tokenizer, max_context_tokens=256, seed=1)
    weight = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is weight
    assert weight[:, 0].unique().numel() == 1
