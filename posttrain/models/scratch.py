"""Initialises a small decoder with random weights, in the Qwen3 architecture.

One thing is not random. Copying needs a head that attends to the previous token (half of an
induction head, Olsson et al. 2022, arXiv 2209.11895). Training finds one in a jump, after 60 steps
or 400 by the seed; here the first layer has it from the start.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from posttrain.models.cpu_kernels import use_cpu_kernels
from posttrain.models.params import ScratchModel

NUM_FAST_PAIRS = 4  # fastest rotary pairs of a head: 0.4 to 1 radian a token tells neighbours apart
CONSTANT = 5.0  # in standard deviations of an embedding


def scratch_model(params: ScratchModel, *, tokenizer: Any, max_context_tokens: int, seed: int) -> Qwen3ForCausalLM:
    """A model whose random weights depend on `seed` alone; tied embeddings (V, D), V =
    len(tokenizer)."""
    config = scratch_config(params, vocab_size=len(tokenizer), max_context_tokens=max_context_tokens)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    _attend_to_previous(model)
    use_cpu_kernels(model)  # it is warmed up here
    return model


def scratch_config(params: ScratchModel, *, vocab_size: int, max_context_tokens: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=params.hidden_size,
        intermediate_size=params.mlp_size,
        num_hidden_layers=params.num_layers,
        num_attention_heads=params.num_heads,
        num_key_value_heads=params.num_kv_heads,
        head_dim=params.head_dim,
        max_position_embeddings=max_context_tokens,
        tie_word_embeddings=True,
        # for contexts of a thousand tokens; Qwen3's own theta of 1e6 is for tens of thousands
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _attend_to_previous(model: Qwen3ForCausalLM) -> None:
    """Make the query heads of the first layer's first key head attend one place back, two, and so
    on.

    The first coordinate of every embedding becomes one constant, which adds the same to every logit
    of the tied head. From it the key is k everywhere and the query of the head that looks o back is
    R(-o) k: with rotary embeddings (arXiv 2104.09864) key n scores k·R(n - m + o) k for query m,
    most at n = m - o. Training may undo it.
    """
    config, attention = model.config, model.model.layers[0].self_attn
    size = config.head_dim
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = CONSTANT * config.initializer_range
        key = torch.zeros(size)
        key[:NUM_FAST_PAIRS] = NUM_FAST_PAIRS**-0.5
        attention.k_proj.weight[:size, 0] += key
        for head in range(config.num_attention_heads // config.num_key_value_heads):
            angles = -(head + 1) * model.model.rotary_emb.inv_freq
            attention.q_proj.weight[head * size : (head + 1) * size, 0] += _rotated(key, angles)


def _rotated(vector: Tensor, angles: Tensor) -> Tensor:
    """Pairs (i, i + D/2) of a head's vector (D,) rotated by `angles` (D/2,)."""
    first, second = vector.chunk(2)
    return torch.cat([first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()])
