"""A young adapter adds less to a weight, and to a layer's output, than bfloat16 can tell apart; it
is learnt from and played with nevertheless."""

import copy

import numpy as np
import pytest
import torch

from posttrain.models import lora
from posttrain.models.loading import load_model, save_model
from posttrain.models.lora import merge_adapters
from posttrain.models.params import LINEAR_LAYERS, LoraAdapter
from posttrain.models.precision import bf16_rescale, has_bf16_weights
from posttrain.rollout.engines import fused_weights
from posttrain.rollout.engines.fused_weights import fuse
from posttrain.rollout.engines.slotted_decoder import SlottedDecoder
from posttrain.train import trainable
from posttrain.train.reward_model import new_reward_model
from posttrain.train.trainable import load_trainable
from tests.models.episodes import SCRATCH_PARAMS
from tests.rollout.tiny_models import tiny_model

IDS = torch.randint(1, 64, (32, 64), generator=torch.Generator().manual_seed(0))
SMALL = 5e-4  # of what W x is


@pytest.fixture(
    params=["qwen3", *(pytest.param(name, marks=pytest.mark.needs_large) for name in ("llama", "qwen2", "mistral"))]
)
def folder(request, tmp_path, scratch_tokenizer):
    """Weights that lie on bfloat16's grid, as a pretrained model's do."""
    save_model(tiny_model(request.param).bfloat16().float(), scratch_tokenizer, tmp_path / "base")
    return tmp_path / "base"


def adapted(folder, model_params, size=1.0):
    """With adapters that add SMALL * size times what is there."""
    model = load_trainable(folder, model_params, seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if hasattr(module, "lora_B"):
            down, up = module.lora_A["default"].weight, module.lora_B["default"].weight
            up.data = torch.randn(up.shape, generator=generator)
            up.data *= size * SMALL * module.base_layer.weight.float().norm() / (up @ down).norm()
    return model


@torch.no_grad()
def logits(model):
    return model(IDS).logits.float()


@torch.no_grad()
def played(model):
    decoder = SlottedDecoder(fuse(model), num_slots=len(IDS), max_context_tokens=IDS.shape[1])
    lengths = [np.full(len(IDS), place + 1) for place in range(IDS.shape[1])]
    return torch.stack([decoder.write(IDS[:, at].numpy(), lengths[at]) for at in range(IDS.shape[1])], 1).float()


def passed(of, folder, read=lambda model: model, *, size=1.0, to=LINEAR_LAYERS):
    """The part of what adapters add to the logits that is in them in bfloat16."""
    with_0, with_1 = (of(read(adapted(folder, params(to, "bfloat16"), one))) for one in (0.0, size))
    exact = logits(adapted(folder, params(to, "float32"), size)) - logits(adapted(folder, params(to, "float32"), 0.0))
    return float((with_1 - with_0).flatten() @ exact.flatten() / exact.square().sum())


def params(to, dtype):
    adapter = LoraAdapter(type="lora", r=4, alpha=4, dropout=0.0, target_modules=list(to))
    return SCRATCH_PARAMS.model_copy(update={"adapter": adapter, "dtype": dtype})


def test_a_model_off_the_grid_computes_the_same(folder):
    model = load_model(folder)
    before, weights = logits(model), [weight.clone() for weight in model.parameters()]
    torch.testing.assert_close(logits(bf16_rescale(model)), before, atol=2e-4, rtol=1e-4)
    moved = [new for new, old in zip(model.parameters(), weights, strict=True) if not torch.equal(new, old)]
    assert len(moved) >= 3 * 9, "seven matrices and two norms a layer"
    for layer in model.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            assert torch.equal(norm.weight, norm.weight.bfloat16().float())
        is_on = layer.mlp.down_proj.weight == layer.mlp.down_proj.weight.bfloat16().float()
        assert is_on.float().mean() < 0.02


def test_a_layer_with_a_young_adapter_passes_it_on(folder):
    def by_peft(model):
        model = copy.deepcopy(model)
        for module in model.modules():
            if hasattr(module, "lora_B"):
                del module.forward
        return model

    assert passed(logits, folder) == pytest.approx(1.0, abs=0.35)
    assert passed(logits, folder, by_peft) < 0.65, "it is why the product is made otherwise"


def test_an_engine_plays_with_a_young_adapter(folder, monkeypatch):
    """On matrices that no norm is folded into."""
    measured = {"size": 2.0, "to": ["o_proj", "down_proj"]}
    assert passed(played, folder, **measured) == pytest.approx(1.0, abs=0.35)
    monkeypatch.setattr(fused_weights, "channel_scales", lambda size, device: torch.ones(size, device=device))
    assert passed(played, folder, **measured) < 0.65, "it is why the weights are moved"


def test_a_folded_model_read_in_bfloat16_has_a_young_adapter(folder, tmp_path, scratch_tokenizer, monkeypatch):
    def folded(model):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        save_model(merge_adapters(model), scratch_tokenizer, path)
        return load_model(path, dtype="bfloat16")

    assert passed(logits, folder, folded, size=2.0) == pytest.approx(1.0, abs=0.35)
    monkeypatch.setattr(lora, "bf16_rescale", lambda model: model)
    assert passed(logits, folder, folded, size=2.0) < 0.65, "it is why the weights are moved"


def test_gradients_are_those_of_the_sum(folder):
    found, exact = (adapted(folder, params(LINEAR_LAYERS, dtype)) for dtype in ("bfloat16", "float32"))
    for model in (found, exact):
        model(input_ids=IDS, labels=IDS).loss.backward()
    for (name, one), (_, other) in zip(found.named_parameters(), exact.named_parameters(), strict=True):
        if other.grad is not None:
            assert torch.nn.functional.cosine_similarity(one.grad, other.grad.to(one.grad), dim=-1).mean() > 0.9, name


@torch.no_grad()
def learnt(folder, dtype):
    """The change of the logits where each matrix has grown by less than half a step."""
    model = load_trainable(folder, SCRATCH_PARAMS.model_copy(update={"dtype": dtype}), seed=0).eval()
    before = logits(model)
    for name, weight in model.named_parameters():
        if "layers" in name and weight.dim() == 2:
            weight.mul_(1 + 3 * SMALL)
    return (logits(model) - before).flatten()


def test_an_optimizers_small_steps_are_in_the_products_of_a_published_model(folder, monkeypatch):
    exact = learnt(folder, "float32")

    def share():
        return float(learnt(folder, "bfloat16") @ exact / exact.square().sum())

    assert share() == pytest.approx(1.0, abs=0.35)
    monkeypatch.setattr(trainable, "bf16_rescale", lambda model: model)
    assert share() < 0.1, "it is why the weights are moved"


def test_only_weights_that_are_learnt_in_bfloat16_and_lie_on_its_grid_are_moved(folder, tmp_path, scratch_tokenizer):
    def is_moved(model_params, path=folder):
        ends = [name for name, _ in load_model(path).named_parameters() if "down_proj" in name]
        found = load_trainable(path, model_params, seed=0).state_dict()
        return any(not torch.equal(found[name].float(), load_model(path).state_dict()[name]) for name in ends)

    full = SCRATCH_PARAMS.model_copy(update={"dtype": "bfloat16"})
    assert is_moved(full)
    assert not is_moved(SCRATCH_PARAMS)
    save_model(bf16_rescale(load_model(folder)), scratch_tokenizer, tmp_path / "learnt")
    assert not is_moved(full, tmp_path / "learnt")
    model = new_reward_model(folder, full, seed=0)
    assert not has_bf16_weights(model)
