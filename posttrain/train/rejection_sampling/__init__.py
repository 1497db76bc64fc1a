"""Rejection-sampling fine-tuning: the policy plays, and learns from those of its own episodes that
were accepted."""
