"""A young adapter adds less to a weight, and to a layer's output, than bfloat16 can tell apart; it
is learnt from and played with nevertheless."""

import copy

import numpy as np
import pytest
import torch

from posttrain.algorithms.trainable import load_trainable
from posttrain.models.loading import load_model, save_model
from posttrain.models.lora import merge_adapters
from posttrain.models.off_grid import off_grid
from posttrain.params import LINEAR_LAYERS, LoraAdapter
from posttrain.rollout.engines.fused_weights import fuse
from posttrain.rollout.engines.slotted_decoder import SlottedDecoder
from tests.models.episodes import SCRATCH_PARAMS
from tests.rollout.tiny_models import MODELS, tiny_model

ADAPTER = LoraAdapter(type="lora", r=4, alpha=4, dropout=0.0, target_modules=list(LINEAR_LAYERS))
LORA = SCRATCH_PARAMS.model_copy(update={"adapter": ADAPTER})
BF16_LORA = LORA.model_copy(update={"dtype": "bfloat16"})
IDS = torch.randint(1, 64, (8, 48), generator=torch.Generator().manual_seed(0))
SMALL = 2e-3  # of what W x is


@pytest.fixture(params=MODELS)
def folder(request, tmp_path, scratch_tokenizer):
    """Weights that lie on bfloat16's grid, as a pretrained model's do."""
    save_model(tiny_model(request.param).bfloat16().float(), scratch_tokenizer, tmp_path / "base")
    return tmp_path / "base"


def adapted(folder, params, size=1.0):
    """With adapters that add SMALL * size times what is there."""
    model = load_trainable(folder, params, seed=0).eval()
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


def passed(of, folder, read=lambda model: model):
    """The part of what adapters add to the logits that is in them in bfloat16."""
    with_0, with_1 = (of(read(adapted(folder, BF16_LORA, size))) for size in (0.0, 1.0))
    exact = logits(adapted(folder, LORA)) - logits(adapted(folder, LORA, 0.0))
    return float((with_1 - with_0).flatten() @ exact.flatten() / exact.square().sum())


def test_a_model_off_the_grid_computes_the_same(folder):
    model = load_model(folder)
    before, weights = logits(model), [weight.clone() for weight in model.parameters()]
    torch.testing.assert_close(logits(off_grid(model)), before, atol=2e-4, rtol=1e-4)
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

    assert passed(logits, folder) == pytest.approx(1.0, abs=0.25)
    assert passed(logits, folder, by_peft) < 0.6, "it is why the product is made otherwise"


def test_an_engine_plays_with_a_young_adapter(folder):
    assert passed(played, folder) == pytest.approx(1.0, abs=0.25)


def test_a_folded_model_read_in_bfloat16_has_a_young_adapter(folder, tmp_path, scratch_tokenizer):
    def folded(model):
        model = merge_adapters(model)
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        save_model(model, scratch_tokenizer, path)
        return load_model(path, dtype="bfloat16")

    assert passed(logits, folder, folded) == pytest.approx(1.0, abs=0.25)


def test_gradients_are_those_of_the_sum(folder):
    found, exact = (adapted(folder, params) for params in (BF16_LORA, LORA))
    for model in (found, exact):
        model(input_ids=IDS, labels=IDS).loss.backward()
    for (name, one), (_, other) in zip(found.named_parameters(), exact.named_parameters(), strict=True):
        if other.grad is not None:
            assert torch.nn.functional.cosine_similarity(one.grad, other.grad.to(one.grad), dim=-1).mean() > 0.9, name
