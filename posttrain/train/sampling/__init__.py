"""Sampling orders: which tasks a step plays."""
