"""A trained model as it leaves the pipeline: its folder, its card, and what a server is told of
it."""
