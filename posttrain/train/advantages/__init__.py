"""Advantages: how much better than expected the agent's tokens were, in float64; a file a
method."""
