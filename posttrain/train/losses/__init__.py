"""Losses of tokens: objectives, divergence from the first model, importance weights."""
