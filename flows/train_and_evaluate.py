"""The whole graph as one Prefect run: a task per stage, matrix items too, with its log, its state and the table of policies.

`python -m flows.train_and_evaluate` in the repository. The server is the one that PREFECT_API_URL names, or a temporary one on loopback. DVC decides
what runs, `infra/dispatch.yaml` where; siblings run beside each other as far as the target has room. The result is that of `dvc repro`.
"""

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.ends import exit_with
from flows.graph_run import BESIDE_EACH_OTHER, run_graph
from flows.node_run import NodeRuns

REPORTS = Path("reports")


@flow(log_prints=False, validate_parameters=False, task_runner=BESIDE_EACH_OTHER)
def train_and_evaluate() -> State[Any]:
    """Bring the tree up to date, and show the table of policies."""
    return run_graph(NodeRuns(Path()), REPORTS)


if __name__ == "__main__":
    exit_with(train_and_evaluate)
