"""A small decoder with random weights: the Qwen3 architecture, because it is the one of the models that this pipeline is for."""

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from posttrain.params import ScratchModel


def scratch_model(params: ScratchModel, *, tokenizer: Any, max_context_tokens: int, seed: int) -> Qwen3ForCausalLM:
    """Random weights drawn from `seed` alone, whatever was drawn before; input and output embeddings are one matrix (V, D) with V =
    len(tokenizer)."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=params.hidden_size,
        intermediate_size=params.mlp_size,
        num_hidden_layers=params.num_layers,
        num_attention_heads=params.num_heads,
        num_key_value_heads=params.num_kv_heads,
        head_dim=params.head_dim,
        max_position_embeddings=max_context_tokens,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},  # contexts of a thousand tokens; Qwen3's own 1e6 is for tens of thousands
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    return model.to(getattr(torch, params.dtype))
