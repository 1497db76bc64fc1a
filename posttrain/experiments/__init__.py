"""Experiments: overrides times seeds, their records and the verdicts on them."""
