"""Selects demonstrations to train on: a quality filter, a coreset, and oversampling of rare cells
with new episodes."""
