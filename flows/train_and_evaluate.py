"""The whole graph as one Prefect run: a task per stage, matrix items too, with its log, its state and the table of policies.

`python -m flows.train_and_evaluate` in the repository. The server is the one that PREFECT_API_URL names, or a temporary one on loopback. DVC decides
what runs, `infra/dispatch.yaml` where; siblings run beside each other as far as the target has room. The result is that of `dvc repro`.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.node_run import NodeOutcome, NodeRuns
from posttrain.provenance.graph import StageNode, read_graph
from posttrain.report.table import summary_markdown, summary_table

ROOT = Path()
REPORTS = Path("reports")
MAX_MESSAGE_LINES = 8
BESIDE_EACH_OTHER: Any = ThreadPoolTaskRunner(max_workers=16)  # Any: @flow's hint wants a runner of PrefectFuture itself and refuses its subclasses


class StageFailure(Exception):
    """A stage did not end well. `exit_code` is that of its command, 1 where DVC itself failed."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@flow(log_prints=False, validate_parameters=False, task_runner=BESIDE_EACH_OTHER)
def train_and_evaluate() -> State[Any]:
    """Run every stage in DVC's order; a failed stage keeps those that need it from starting, and no other."""
    nodes = read_graph(ROOT)
    outcomes: dict[str, NodeOutcome] = {}
    runs = NodeRuns(ROOT)
    futures: dict[str, PrefectFuture[Any]] = {}
    for node in nodes:
        needed = [futures[name] for name in node.upstream]
        stage_task = run_stage.with_options(name=node.stage, task_run_name=node.name, description=node.description)
        futures[node.name] = stage_task.submit(node, runs, outcomes, wait_for=needed, return_state=False)
    try:
        for future in futures.values():
            future.wait()
    except BaseException as error:  # Ctrl-C, or Prefect's own signal for SIGTERM: the stage's process is ended by neither
        runs.stop()
        if isinstance(error, KeyboardInterrupt) and not PREFECT_API_URL.value():
            _leave_at_once()
        raise
    runs.close()
    return _finish(nodes, outcomes)


@task(cache_policy=NO_CACHE, persist_result=False)
def run_stage(node: StageNode, runs: NodeRuns, outcomes: dict[str, NodeOutcome]) -> State[Any]:
    """Bring one stage up to date. Its outcome is also left in `outcomes`, under its name."""
    outcome = outcomes[node.name] = runs.run(node, get_run_logger().info)
    if outcome.state == "cached":
        return Completed(name="Cached", message="DVC had nothing to run")
    if outcome.state == "completed":
        return Completed(message=f"ran for {outcome.seconds:.0f} s{_preempted(outcome)}")
    return Failed(message="\n".join([outcome.reason + _preempted(outcome), *outcome.tail[-MAX_MESSAGE_LINES:]]))


def stages_markdown(nodes: Sequence[StageNode], outcomes: Mapping[str, NodeOutcome]) -> str:
    """The table of an artifact: stage, seconds, state. A stage that never started, because one before it failed, reads `not run`."""
    rows = ["| stage | seconds | target | job | state |", "| --- | ---: | --- | --- | --- |"]
    for node in nodes:
        outcome = outcomes.get(node.name)
        if outcome is None:
            rows.append(f"| {node.name} | | | | not run |")
        else:
            cause = f": {outcome.reason}" if outcome.reason else ""
            rows.append(f"| {node.name} | {outcome.seconds:.1f} | {outcome.target} | {outcome.job} | {outcome.state}{_preempted(outcome)}{cause} |")
    return "\n".join(rows) + "\n"


def _preempted(outcome: NodeOutcome) -> str:
    return f", preempted {outcome.num_preempted} times" if outcome.num_preempted else ""


def _finish(nodes: Sequence[StageNode], outcomes: Mapping[str, NodeOutcome]) -> State[Any]:
    create_markdown_artifact(stages_markdown(nodes, outcomes), key="stages", description="what ran, for how long, and how it ended")
    failed = {name: outcome for name, outcome in outcomes.items() if not outcome.is_good}
    if len(outcomes) < len(nodes) and not failed:
        raise RuntimeError(f"{', '.join(node.name for node in nodes if node.name not in outcomes)}: neither ran nor failed; the run's log says why")
    if failed:
        message = "; ".join(f"{name}: {outcome.reason}" for name, outcome in failed.items())
        first_code = next(iter(failed.values())).exit_code
        return Failed(message=message, data=StageFailure(message, first_code or 1))
    create_markdown_artifact(summary_markdown(REPORTS), key="evaluation", description="success on companies never seen in training")
    get_run_logger().info("\n%s", summary_table(REPORTS))
    return Completed(message=f"{sum(outcome.state == 'completed' for outcome in outcomes.values())} of {len(nodes)} stages ran")


def _leave_at_once() -> NoReturn:
    """End without a report. A terminal's Ctrl-C ends the temporary server too, and Prefect would go on for minutes trying to reach it."""
    from prefect.server.api.server import SubprocessASGIServer  # the whole server: a second of import that only this needs

    SubprocessASGIServer().stop()
    print("interrupted: run it again, what is done is kept", file=sys.stderr, flush=True)
    os._exit(128 + signal.SIGINT)


def main() -> None:
    """Exit with 0, or with the exit code of the stage that failed."""
    # After a SIGTERM Prefect puts this handler back and sends the signal again. An exit ends the temporary server; the default action would not.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        train_and_evaluate()
    except StageFailure as failure:
        print(failure, file=sys.stderr)
        sys.exit(failure.exit_code)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
