"""Runs the graph of `dvc.yaml` node by node: which are current, where each runs, how its result is
recorded."""
