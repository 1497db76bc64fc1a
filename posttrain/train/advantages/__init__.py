"""Credit: how much better than expected what the agent wrote was. Pure functions in float64."""
