"""Adapters are learnt on a base of eight or four bits, and folded into the numbers that it stood
for."""

import logging
import sys

import pytest
import torch

from posttrain.models.adapters import behind_adapters
from posttrain.models.loading import load_model, save_model
from posttrain.models.lora import merge_adapters
from posttrain.models.params import LoraAdapter
from posttrain.models.quantization import is_quantised
from posttrain.rollout.engines.fused_weights import fuse
from posttrain.runtime.exits import ConfigurationError
from posttrain.train.reward_model import new_reward_model, score_episodes
from posttrain.train.trainable import load_trainable, save_trained
from tests.models.episodes import SCRATCH_PARAMS, logprobs

KINDS = ("int8", "nf4")


def params_of(quantization, dtype="float32"):
    lora = {"type": "lora", "r": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj", "up_proj"]}
    adapter = LoraAdapter(**lora, quantization=quantization)
    return SCRATCH_PARAMS.model_copy(update={"adapter": adapter, "dtype": dtype})


@pytest.fixture
def folder(scratch_folder):
    return scratch_folder


def step(model, rows):
    """One of AdamW, after which the adapters are something."""
    for _ in range(2):  # B is 0 at first, and A then has no gradient
        (-logprobs(model, rows).mean()).backward()
        steps = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
        steps.step()
        model.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
def test_layers_but_the_head_are_quantised_and_only_adapters_are_learnt(folder, rows, kind):
    model = load_trainable(folder, params_of(kind), seed=0)
    layers = [module for module in model.modules() if is_quantised(module)]
    assert len(layers) == 7 * SCRATCH_PARAMS.num_layers
    assert not is_quantised(behind_adapters(model).lm_head)
    exact = load_model(folder)
    with torch.no_grad():
        gap = (logprobs(model, rows) - logprobs(exact, rows)).abs().mean()
    assert 1e-6 < gap < 0.1
    before = -float(logprobs(model, rows).mean().detach())
    step(model, rows)
    assert -float(logprobs(model, rows).mean().detach()) < before
    assert all(("lora_" in name) == one.requires_grad for name, one in model.named_parameters())


def test_no_processor_packs_the_bits_otherwise(folder, rows, monkeypatch):
    """bitsandbytes repacks them at the first evaluation where there are bfloat16 instructions."""
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    model = load_trainable(folder, params_of("nf4"), seed=0).eval()
    layers = [module for module in model.modules() if is_quantised(module)]
    before = [layer.weight.clone() for layer in layers]
    with torch.no_grad():
        logprobs(model, rows)
    assert all(map(torch.equal, before, (layer.weight for layer in layers)))
    assert {layer.weight.quant_state.absmax.dtype for layer in layers} == {torch.float32}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_folded_in_computes_what_was_learnt(folder, rows, tmp_path, scratch_tokenizer, kind):
    model = load_trainable(folder, params_of(kind), seed=0)
    step(model, rows)
    with torch.no_grad():
        learnt = logprobs(model, rows)
    save_trained(model, scratch_tokenizer, tmp_path / "trained")
    merged = load_model(tmp_path / "trained")
    assert not any(is_quantised(module) for module in merged.modules())
    assert {one.dtype for one in merged.parameters()} == {torch.float32}
    with torch.no_grad():
        gap = (logprobs(merged, rows) - learnt).abs()
        assert gap.mean() < 0.25 * (logprobs(load_model(folder), rows) - learnt).abs().mean()
    # int8 computes with rounded inputs, which no matrix has
    assert gap.max() < (1e-4 if kind == "nf4" else 0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_plays_with_what_the_quantised_weights_stand_for(folder, rows, kind):
    model = load_trainable(folder, params_of(kind), seed=0)
    step(model, rows)
    weights = fuse(model)
    merged = fuse(merge_adapters(model))
    for found, expected in zip(weights.layers, merged.layers, strict=True):
        torch.testing.assert_close(found.qkv, expected.qkv, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.gate_up, expected.gate_up, rtol=1e-5, atol=1e-6)


def test_products_of_a_quantised_base_may_be_bfloat16(folder, rows):
    model = load_trainable(folder, params_of("nf4", "bfloat16"), seed=0)
    step(model, rows)
    assert {one.dtype for one in model.parameters() if one.requires_grad} == {torch.float32}
    assert fuse(model).head.dtype == torch.bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_a_reward_model_is_learnt_on_one_as_well(folder, rows, tmp_path, scratch_tokenizer, kind):
    model = new_reward_model(folder, params_of(kind), seed=0)
    assert any(is_quantised(module) for module in model.modules())
    with torch.no_grad():
        for name, one in model.named_parameters():
            if one.requires_grad and "lora_A" not in name:
                one.normal_(std=0.05)
    scores = score_episodes(model, rows.tolist())
    merged = merge_adapters(model)
    assert score_episodes(merged, rows.tolist()) == pytest.approx(scores, abs=1e-4 if kind == "nf4" else 0.05)
    save_model(merged, scratch_tokenizer, tmp_path / "reward")


def test_a_quantised_base_is_not_sharded(monkeypatch, folder):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigurationError, match="quantization is nf4, and FSDP would cut quantised matrices"):
        load_trainable(folder, params_of("nf4"), seed=0)


def test_without_the_package_it_is_said_which(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigurationError, match=r"the package bitsandbytes is missing: pip install 'posttrain\[quant"):
        load_trainable(folder, params_of("int8"), seed=0)


def test_who_quantises_nothing_is_told_of_no_missing_kernels():
    """TRL and PEFT import bitsandbytes in any case, and it warns where it is imported."""
    assert not logging.getLogger("bitsandbytes.backends.cpu.ops").isEnabledFor(logging.WARNING)
