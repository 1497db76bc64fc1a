"""Runs one tree's graph inside a flow run: a task per stage, its state, and the tables at the end.

The body of every flow. A task's state is the stage's own, also between start and end ("Waiting",
"Preempted"), because a person looks there first.
"""

import contextlib
import queue
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import PrefectException
from prefect.futures import PrefectFuture
from prefect.states import Cancelled, Completed, Failed, Running
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task
from prefect.utilities.annotations import quote
from prefect.utilities.engine import emit_task_run_state_change_event

from flows.exit_codes import StageFailure
from flows.local_server import keep_secret_from_jobs
from posttrain.dispatch.backend import JobState, JobStatus
from posttrain.pipeline.executor import StageExecutor
from posttrain.pipeline.graph import StageNode
from posttrain.pipeline.run_status import RunStatus, preempted, stages_markdown
from posttrain.report.run_page import write_run_page
from posttrain.report.table import summary_markdown, summary_table
from posttrain.runtime.exits import Interrupted
from posttrain.runtime.redaction import redact, redact_logs
from posttrain.tracking.alarms import alarms_markdown
from posttrain.tracking.metrics_log import read_metrics

# Any: @flow's hint wants a runner of PrefectFuture itself and refuses its subclasses
BESIDE_EACH_OTHER: Any = ThreadPoolTaskRunner(max_workers=16)
MAX_MESSAGE_LINES = 8
LOOK_S = 2.0  # a cancelled run's jobs are to be dead in 15 s, and a backend may take five of them


def run_graph(runs: StageExecutor, reports: Path, targets: Collection[str] = ()) -> State[Any]:
    """Run every stage in DVC's order, or the `targets` and what they need. A failed stage keeps
    those that need it from starting, and no other. Called in a flow run.

    Where it is left by an exception (Ctrl-C, a SIGTERM), or its run is cancelled on the server, no
    job of it lives on.
    """
    keep_secret_from_jobs()
    redact_logs()  # of what stages print, the run's log keeps no keys
    nodes = _needed(runs.nodes, targets)
    status = RunStatus(nodes)
    futures: dict[str, PrefectFuture[Any]] = {}
    try:
        for node in nodes:
            needed = [futures[name] for name in node.upstream]
            stage_task = run_stage.with_options(name=node.stage, task_run_name=node.name, description=node.description)
            # quoted, Prefect does not look for futures in what the tasks beside it change meanwhile
            futures[node.name] = stage_task.submit(
                node, quote(runs), quote(status), wait_for=needed, return_state=False
            )
        _wait_for(list(futures.values()), runs)
    except BaseException:  # the job of a stage is ended by no signal to this process
        runs.stop()
        raise
    runs.close()
    table = stages_markdown(nodes, status.outcomes)
    create_markdown_artifact(table, key="stages", description="what ran, for how long, and how it ended")
    if runs.is_stopped:
        return Cancelled(message="it was cancelled; run it again, what is done is kept")
    if failed := status.failed():
        message = "; ".join(f"{name}: {outcome.reason}" for name, outcome in failed.items())
        return Failed(message=message, data=StageFailure(message, next(iter(failed.values())).exit_code or 1))
    if missing := status.missing():
        why = "; ".join(f"{name}: {_how_it_ended(futures[name])}" for name in missing)
        raise RuntimeError(f"Prefect ended the tasks of these stages without running them: {why}")
    if targets:
        return Completed(message=status.summary())
    create_markdown_artifact(
        summary_markdown(reports), key="evaluation", description="success on tasks never seen in training"
    )
    if (curve := reports / "train_policy" / "metrics.jsonl").exists():
        create_markdown_artifact(
            alarms_markdown(read_metrics(curve)), key="alarms", description="health rules that the training broke"
        )
    get_run_logger().info("\n%s\n%s", summary_table(reports), write_run_page(reports.parent))
    return Completed(message=status.summary())


def _needed(nodes: Sequence[StageNode], targets: Collection[str]) -> list[StageNode]:
    """The targets and all that is upstream of them, in the same order; everything without a
    target."""
    wanted = set(targets) or {node.name for node in nodes}
    for node in reversed(nodes):  # in DVC's order upstream nodes come first
        if node.name in wanted:
            wanted.update(node.upstream)
    return [node for node in nodes if node.name in wanted]


def is_worth_retrying(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """True for a backend that could not be reached or a held lock. A stage's own failure is retried
    by the dispatcher, where that can help."""
    return state.name == "Interrupted"


@task(
    cache_policy=NO_CACHE, persist_result=False, retries=3, retry_delay_seconds=10, retry_condition_fn=is_worth_retrying
)
def run_stage(node: StageNode, runs: StageExecutor, status: RunStatus) -> State[Any]:
    """Bring one stage up to date and note on the `status` how it ended. Retried, it finds the job
    that it left and starts no second."""
    log = get_run_logger()

    try:
        outcome = runs.run(node, log.info, _show)
    except Interrupted as error:
        return Cancelled(message=str(error))
    status.outcomes[node.name] = outcome
    if outcome.state == "cached":
        return Completed(name="Cached", message="DVC had nothing to run")
    if outcome.state == "completed":
        return Completed(message=f"ran for {outcome.seconds:.0f} s{preempted(outcome.num_preempted)}")
    message = "\n".join([outcome.reason + preempted(outcome.num_preempted), *outcome.tail[-MAX_MESSAGE_LINES:]])
    is_cut_off = outcome.state == "failed" and outcome.exit_code == Interrupted.code and not outcome.job
    return Failed(name="Interrupted" if is_cut_off else "Failed", message=message)


def _show(status: JobStatus, num_preempted: int) -> None:
    """Show a job's status as the state of the task that this is called in."""
    run = TaskRunContext.get()
    if run is None:
        return
    note = f": {redact(status.note)}" if status.note else ""
    if status.is_over:
        state: State[Any] = Running(
            name="Preempted",
            message=f"{status.cause or 'gone'}{note}{preempted(num_preempted)}; it goes on from its checkpoint",
        )
    elif status.state is JobState.WAITING:
        state = Running(name="Waiting", message=f"for a machine{note}{preempted(num_preempted)}")
    else:
        state = Running(message=f"its job runs{note}{preempted(num_preempted)}")
    state.state_details.task_run_id, state.state_details.flow_run_id = run.task_run.id, run.task_run.flow_run_id
    before, run.task_run.state = run.task_run.state, state
    run.task_run.state_name = state.name
    emit_task_run_state_change_event(run.task_run, before, state)


def _wait_for(futures: Sequence[PrefectFuture[Any]], runs: StageExecutor) -> None:
    """Wait until all are done. Meanwhile ask the server whether the run was cancelled: a worker
    would send a signal, but a run started in a terminal has no worker."""
    done: queue.Queue[PrefectFuture[Any]] = queue.Queue()
    for future in futures:
        future.add_done_callback(done.put)
    num_left, next_look_s = len(futures), time.monotonic() + LOOK_S
    while num_left:
        with contextlib.suppress(queue.Empty):
            done.get(timeout=LOOK_S)
            num_left -= 1
        if time.monotonic() < next_look_s:
            continue
        next_look_s = time.monotonic() + LOOK_S
        if not runs.is_stopped and is_cancelled():
            get_run_logger().warning("cancelled on the server: its jobs are killed")
            runs.stop()


def _how_it_ended(future: PrefectFuture[Any]) -> str:
    """State of a task that is done, or the error that kept Prefect from starting it."""
    try:
        future.wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return str(future.state)


def is_cancelled() -> bool:
    """True where somebody cancelled the flow run that this is called in; False where the server
    does not answer."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return False
    try:
        state = get_client(sync_client=True).read_flow_run(context.flow_run.id).state
    except (httpx.HTTPError, PrefectException):
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())
