"""Methods of learning online against each other, at an equal budget of generated tokens: which runs
that takes, what is kept of each, and the table over seeds."""
