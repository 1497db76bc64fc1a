"""Attention in blocks against PyTorch's, values and gradients; fast products against exact ones."""

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from posttrain.models.cpu_kernels import BLOCK, NAME, _Attention, fast_products
from posttrain.models.distributed import to_device
from posttrain.models.scratch import scratch_model
from tests.models.episodes import SCRATCH_PARAMS


@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 44])
@pytest.mark.parametrize("num_kv", [1, 2, 4])
def test_attention_is_pytorchs_with_its_gradients(length, num_kv):
    draw = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(3, heads, length, 8, generator=draw, requires_grad=True) for heads in (4, num_kv, num_kv))
    weight = torch.randn(3, 4, length, 8, generator=draw)
    found = []
    for attend in (
        lambda: _Attention.apply(q, k, v, 0.3),
        lambda: scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True),
    ):
        out = attend()
        found.append([out, *torch.autograd.grad((out * weight).sum(), (q, k, v))])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_in_bfloat16_attention_is_as_near_to_the_exact_one_as_pytorchs_within_a_half():
    draw = torch.Generator().manual_seed(0)
    exact = [torch.randn(2, heads, BLOCK + 30, 16, generator=draw) for heads in (4, 2, 2)]
    weight = torch.randn(2, 4, BLOCK + 30, 16, generator=draw).bfloat16()

    def attended(attend, inputs):
        inputs = [one.clone().requires_grad_() for one in inputs]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inputs[0].dtype == torch.bfloat16):
            out = attend(*inputs)
        return [out, *torch.autograd.grad((out * weight.to(out.dtype)).sum(), inputs)]

    rounded = [one.bfloat16() for one in exact]

    def pytorchs(*inputs):
        return scaled_dot_product_attention(*inputs, is_causal=True, scale=0.25, enable_gqa=True)

    ours = attended(lambda *inputs: _Attention.apply(*inputs, 0.25), rounded)
    theirs = attended(pytorchs, rounded)
    for own, other, expected in zip(ours, theirs, attended(pytorchs, [one.float() for one in rounded]), strict=True):
        assert own.dtype == torch.bfloat16
        error, allowed = ((one.float() - expected.float()).norm() / expected.norm() for one in (own, other))
        assert error < 1.5 * allowed < 0.01


def test_rows_padded_on_the_right_need_no_mask_and_others_have_theirs(scratch_tokenizer):
    model = to_device(scratch_model(SCRATCH_PARAMS, tokenizer=scratch_tokenizer, max_context_tokens=64, seed=0)).eval()
    assert model.config._attn_implementation == NAME
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    for places in (slice(0, 6), slice(3, 9)):  # the real tokens of the second row
        mask = torch.zeros_like(ids)
        mask[0], mask[1, places] = 1, 1
        in_batch = model(input_ids=ids, attention_mask=mask).logits[1, places]
        positions = torch.arange(9)[places][None]
        alone = model(input_ids=ids[1:, places], position_ids=positions).logits[0]
        torch.testing.assert_close(in_batch, alone, rtol=1e-4, atol=1e-5)


def test_fast_products_are_float32_and_end(monkeypatch):
    """Also where the processor has instructions for bfloat16: 1e-6 of the largest, not 4e-3."""
    before = torch.get_float32_matmul_precision()
    x, weight = (torch.randn(200, 96, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    exact = linear(x.double(), weight.double())
    with fast_products(torch.device("cpu")):
        fast = linear(x, weight)
    assert torch.get_float32_matmul_precision() == before
    assert float((fast - exact).abs().max() / exact.abs().max()) < 1e-6
    with fast_products(torch.device("meta")):
        assert torch.get_float32_matmul_precision() == before
