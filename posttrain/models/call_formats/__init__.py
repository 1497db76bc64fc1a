"""The forms in which families of models write calls: Hermes (Qwen), Llama's JSON, Mistral's,
pythonic (LFM2, Llama 4)."""
