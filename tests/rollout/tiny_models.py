"""Random models of the supported architectures, with every weight random: a norm of ones or a bias
of zeros would hide that it is not used."""

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)),
    "qwen3_of_vllm": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True)),  # on a CPU
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=False)),
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE)),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZES, sliding_window=None, tie_word_embeddings=False)),
}


def tiny_model(architecture: str, seed: int = 0) -> torch.nn.Module:
    model_class, config = MODELS[architecture]
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.3 * noise)
    return model


@torch.no_grad()
def reference_logprobs(model: torch.nn.Module, token_ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """(T, V): row t is the distribution of token t + 1, by a plain forward pass."""
    logits = model(torch.tensor([token_ids])).logits[0]
    return torch.log_softmax(logits / temperature, dim=-1)
