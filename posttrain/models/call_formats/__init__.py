"""Tool-call formats of model families: Hermes (Qwen), Llama's JSON, Mistral's,
pythonic (LFM2, Llama 4)."""
