"""The graph of `dvc.yaml`, run node by node: what is current, where a stage runs, and how its
result is recorded."""
