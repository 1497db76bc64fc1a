"""The whole graph as one Prefect run: a task per stage, matrix items too, with its log, its state
and the table of policies.

`python -m flows.train_and_evaluate` in the repository. The server is the one that PREFECT_API_URL
names, or a temporary one on loopback. DVC decides what runs, `infra/dispatch.yaml` where; siblings
run beside each other as far as the target has room. The result is that of `dvc repro`.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.exit_codes import exit_with
from flows.graph_run import BESIDE_EACH_OTHER, run_graph
from flows.local_server import with_server
from posttrain.pipeline.executor import StageExecutor

REPORTS = Path("reports")
MADE_AHEAD = ContextVar[Future[StageExecutor] | None]("made_ahead", default=None)


@flow(log_prints=False, validate_parameters=False, task_runner=BESIDE_EACH_OTHER)
def train_and_evaluate() -> State[Any]:
    """Bring the tree up to date, and show the table of policies."""
    ahead = MADE_AHEAD.get()
    return run_graph(ahead.result() if ahead is not None else StageExecutor(Path()), REPORTS)


def main() -> None:
    """DVC reads the tree while the server starts and Prefect asks it for a run: of a graph with
    nothing to run these are most of the time."""

    def read_ahead() -> None:
        MADE_AHEAD.set(ThreadPoolExecutor(1).submit(StageExecutor, Path()))

    exit_with(lambda: with_server(train_and_evaluate, meanwhile=read_ahead))


if __name__ == "__main__":
    main()
