"""Sampling: which tasks a step plays."""
