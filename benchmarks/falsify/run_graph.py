"""`python -m benchmarks.falsify.run_graph` runs every node of the tree in the working folder as a
flow does."""

import sys
from pathlib import Path


def run_graph() -> int:
    """1 where a node did not end well."""
    from posttrain.pipeline.executor import StageExecutor

    runs = StageExecutor(Path())
    try:
        for node in runs.nodes:
            outcome = runs.run(node, print)
            print(node.name, outcome.state, outcome.reason, flush=True)
            if not outcome.is_good:
                return 1
    finally:
        runs.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_graph())
