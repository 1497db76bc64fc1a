"""A stage's task in Prefect, without a server: its arguments, and the state that its end gives."""

import pytest
from prefect.logging import disable_run_logger
from prefect.utilities.engine import collect_task_run_inputs_sync

from flows import graph_run
from flows.graph_run import is_worth_retrying, run_graph, run_stage
from posttrain.pipeline.executor import NodeOutcome
from posttrain.pipeline.graph import StageNode
from posttrain.pipeline.run_status import RunStatus
from posttrain.runtime.exits import Interrupted

NODE = StageNode("train", "", "", (), (), (), ())


class Ends:
    """Stands in for StageExecutor: its stage ends as it is told."""

    def __init__(self, outcome):
        self._outcome = outcome

    def run(self, node, tell, watch):
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def state_of(outcome):
    run_status = RunStatus([NODE])
    with disable_run_logger():
        state = run_stage.fn(NODE, Ends(outcome), run_status)
    return state, run_status


def test_a_stage_that_ended_is_completed_cached_or_failed_with_its_cause():
    assert state_of(NodeOutcome("cached", 0.1))[0].name == "Cached"
    assert state_of(NodeOutcome("completed", 12.3, num_preempted=2))[0].message == "ran for 12 s, preempted 2 times"
    state, run_status = state_of(
        NodeOutcome("failed", 1.0, "exit code 65 (bad data)", 65, "train-1", "local", tail=("last words",))
    )
    assert (state.name, state.message) == ("Failed", "exit code 65 (bad data)\nlast words")
    assert run_status.failed().keys() == {"train"}


def test_only_what_never_reached_its_end_is_tried_again():
    cut_off = state_of(NodeOutcome("failed", 600.0, "no route to the pool", Interrupted.code))[0]
    assert is_worth_retrying(run_stage, None, cut_off)
    given_up = state_of(NodeOutcome("failed", 600.0, "node lost, 20 times", Interrupted.code, "train-20", "slurm"))[0]
    assert not is_worth_retrying(run_stage, None, given_up)
    superseded = state_of(NodeOutcome("superseded", 60.0, "params.yaml:seed changed while it ran", Interrupted.code))[0]
    assert not is_worth_retrying(run_stage, None, superseded)


def test_a_stage_of_a_stopped_run_is_cancelled_and_not_tried_again():
    state, run_status = state_of(Interrupted("its run was stopped"))
    assert (state.is_cancelled(), run_status.missing()) == (True, ["train"])
    assert not is_worth_retrying(run_stage, None, state)


class WrittenMeanwhile(dict):
    """A table that other threads write to while it is read."""

    def items(self):
        raise RuntimeError("dictionary changed size during iteration")


class SubmittedToNobody:
    """Stands in for a task up to the point where Prefect looks for futures in its arguments."""

    def with_options(self, **options):
        return self

    def submit(self, *arguments, **options):
        for argument in arguments:
            collect_task_run_inputs_sync(argument)
        raise InterruptedError


def test_prefect_does_not_read_what_the_stages_beside_each_other_write(monkeypatch):
    class Runs:
        nodes = (NODE,)

        def stop(self):
            pass

    with pytest.raises(RuntimeError, match="changed size"):  # Prefect reads what is not quoted
        collect_task_run_inputs_sync(RunStatus([NODE], WrittenMeanwhile()))
    monkeypatch.setattr(graph_run, "run_stage", SubmittedToNobody())
    monkeypatch.setattr(graph_run, "RunStatus", lambda nodes: RunStatus(nodes, WrittenMeanwhile()))
    monkeypatch.setattr(graph_run, "keep_secret_from_jobs", lambda: None)
    monkeypatch.setattr(graph_run, "redact_logs", lambda: None)
    with pytest.raises(InterruptedError):
        run_graph(Runs(), reports=None)
