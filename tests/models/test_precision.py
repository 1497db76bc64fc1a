"""With `dtype: bfloat16` products are made in bfloat16, and what is learnt is not lost in it."""

import copy

import pytest
import torch
from transformers import Qwen3ForCausalLM

from posttrain.models.loading import load_model, save_model
from posttrain.models.lora import merge_adapters
from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import LoraAdapter
from posttrain.models.precision import compute_dtype, frozen_copy
from posttrain.models.scratch import scratch_model
from posttrain.rollout.engines.fused_weights import fuse
from posttrain.rollout.engines.weight_files import full_weights
from posttrain.train.reward_model import new_reward_model
from posttrain.train.trainable import load_trainable
from tests.models.episodes import SCRATCH_PARAMS, logprobs

BF16 = SCRATCH_PARAMS.model_copy(update={"dtype": "bfloat16"})
ADAPTER = LoraAdapter(type="lora", r=2, alpha=4, dropout=0.0, target_modules=["q_proj", "down_proj"])
LORA, BF16_LORA = (params.model_copy(update={"adapter": ADAPTER}) for params in (SCRATCH_PARAMS, BF16))


@pytest.fixture(params=["tied", "untied"])
def folder(request, tmp_path, scratch_tokenizer):
    model = scratch_model(BF16, tokenizer=scratch_tokenizer, max_context_tokens=64, seed=0)
    if request.param == "untied":
        config = copy.deepcopy(model.config)
        config.tie_word_embeddings = False
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    save_model(model, scratch_tokenizer, tmp_path / "model")
    return tmp_path / "model"


def updated(model, optimizer, rows):
    """100 steps of one gradient, at a rate as for seven billion weights."""
    logprobs(model, rows).sum().backward()
    steps = build_optimizer(model, optimizer, 1e-6)
    gradients = [weight.grad for weight in model.parameters()]
    for _ in range(100):
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = gradient.clone()
        steps.step()
    return [weight.detach() for weight in model.parameters()]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_hundred_small_updates_move_every_weight_as_in_float32(folder, rows, optimizer):
    before = list(load_model(folder).parameters())
    moved = updated(load_trainable(folder, BF16, seed=0), optimizer, rows)
    as_float32 = updated(load_trainable(folder, SCRATCH_PARAMS, seed=0), optimizer, rows)
    rounded = updated(load_model(folder, dtype="bfloat16"), optimizer, rows)
    by_bf16, by_float32, by_rounded = (
        torch.cat([(now - old).detach().abs().flatten().float() for now, old in zip(own, start, strict=True)])
        for own, start in ((moved, before), (as_float32, before), (rounded, [one.bfloat16() for one in before]))
    )
    # the embedding of a token that is in no row has no gradient
    is_moved = by_float32 > 1e-7
    assert is_moved.float().mean() > 0.7
    assert (by_bf16[is_moved] > 0).float().mean() > 0.99, "gradients in bfloat16 are a little other ones"
    assert float(by_bf16[is_moved].mean()) == pytest.approx(float(by_float32[is_moved].mean()), rel=0.05)
    assert (by_rounded[is_moved] > 0).float().mean() < 0.3, "it is why masters are kept"


@pytest.mark.parametrize("params", [BF16, BF16_LORA], ids=["full", "with adapters"])
def test_what_is_trained_is_float32_and_products_are_bfloat16(folder, rows, params):
    model = load_trainable(folder, params, seed=0)
    exact = load_trainable(folder, params.model_copy(update={"dtype": "float32"}), seed=0)
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
    assert (compute_dtype(model), compute_dtype(exact)) == (torch.bfloat16, torch.float32)
    gap = (logprobs(model, rows) - logprobs(exact, rows)).abs().max()
    assert 1e-4 < gap < 0.1
    assert torch.equal(logprobs(copy.deepcopy(model), rows), logprobs(model, rows)), "a copy computes alike"
    logprobs(model, rows).sum().backward()
    assert all(weight.grad.dtype == torch.float32 for weight in model.parameters() if weight.requires_grad)


def test_frozen_weights_beneath_adapters_are_bfloat16(folder):
    frozen = [
        weight.dtype for weight in load_trainable(folder, BF16_LORA, seed=0).parameters() if not weight.requires_grad
    ]
    assert set(frozen) == {torch.bfloat16}


def test_a_reference_is_half_as_large_and_the_same_to_the_last_bit(folder, rows):
    model = load_trainable(folder, BF16, seed=0)
    reference = frozen_copy(model)
    with torch.no_grad():
        assert torch.equal(logprobs(reference, rows), logprobs(model, rows))
    assert {layer.self_attn.q_proj.weight.dtype for layer in reference.model.layers} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in reference.parameters())
    exact = load_trainable(folder, SCRATCH_PARAMS, seed=0)
    assert {weight.dtype for weight in frozen_copy(exact).parameters()} == {torch.float32}


@pytest.mark.parametrize("params", [BF16, BF16_LORA], ids=["full", "with adapters"])
def test_engines_get_the_type_that_is_computed_in(folder, params):
    model = load_trainable(folder, params, seed=0)
    weights = fuse(model)
    assert {weights.embedding.dtype, weights.head.dtype, weights.layers[0].qkv.dtype, weights.layers[0].down.dtype} == {
        torch.bfloat16
    }
    if params is BF16:
        assert {weight.dtype for weight in full_weights(model).values()} == {torch.bfloat16}


def test_adapters_are_folded_into_single_precision(folder, rows):
    model = load_trainable(folder, LORA, seed=0)
    rounded = load_trainable(folder, BF16_LORA, seed=0)
    for one in (model, rounded):
        torch.manual_seed(2)
        for name, weight in one.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=1e-3)
    with torch.no_grad():
        expected = logprobs(model, rows)
        assert torch.allclose(logprobs(merge_adapters(model), rows), expected, atol=1e-4)
    merged = merge_adapters(rounded)
    assert {weight.dtype for weight in merged.parameters()} == {torch.float32}
    base = load_model(folder, dtype="bfloat16").model.layers[0].self_attn.q_proj.weight
    assert (merged.model.layers[0].self_attn.q_proj.weight != base).float().mean() > 0.999


def test_a_reward_models_head_is_learnt_in_single_precision(folder):
    for params in (BF16, BF16_LORA):
        model = new_reward_model(folder, params, seed=0)
        assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
