"""`posttrain jobs` over real jobs on this machine, some of whose runs are dead."""

import sys
import time

import pytest

from posttrain.dispatch.backend import JobSpec, JobState, Resources
from posttrain.dispatch.backends.local import LocalBackend
from posttrain.dispatch.records import JobRecord, JobRecords, Owner, is_alive
from tests.console import posttrain


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path / ".posttrain"
    for record in JobRecords(tmp_path / ".posttrain/jobs.db").all():
        LocalBackend(tmp_path / ".posttrain/local", num_gpus=1).cancel(record.name)


def start(state, name, owner, script="import time; print('begins', flush=True); time.sleep(600)"):
    """Submit like a dispatcher: the record, then the job."""
    record = JobRecord(name, name, name, 1, "local", None, state.parent, state / f"{name}.log", owner, time.time())
    records, backend = JobRecords(state / "jobs.db"), LocalBackend(state / "local", num_gpus=1)
    assert records.add(record)
    records.set_job_id(
        name, backend.submit(JobSpec(name, (sys.executable, "-c", script), record.folder, record.log, Resources()))
    )
    end = time.monotonic() + 60
    while not record.log.exists() or not record.log.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    return backend


def test_a_job_is_listed_tailed_and_cancelled_by_the_beginning_of_its_name(state):
    backend = start(state, "train-sft-1", "nobody")
    listed = posttrain("jobs", "list", "--running").stdout
    assert ("train-sft-1" in listed, "not over" in listed, "1 of 1 jobs" in listed) == (True, True, True)
    assert posttrain("jobs", "tail", "train").stdout == "begins\n"
    assert posttrain("jobs", "cancel", "train").stdout == "train-sft-1 is cancelled\n"
    assert backend.status("train-sft-1").is_over
    assert "over already: cancelled" in posttrain("jobs", "cancel", "train").stdout
    assert "0 of 0 jobs" in posttrain("jobs", "list", "--running").stdout
    assert "cancelled" in posttrain("jobs", "list").stdout


def test_a_followed_log_ends_with_its_job(state):
    start(state, "quick", "nobody", "import time; print('begins', flush=True); time.sleep(1); print('ends')")
    assert posttrain("jobs", "tail", "-f", "quick").stdout == "begins\nends\n"


def test_what_no_living_run_waits_for_is_killed_and_what_one_does_is_not(state):
    owner = Owner(state / "runs")
    backend = start(state, "owned", owner.name)
    start(state, "orphan", "dead")
    told = posttrain("jobs", "reconcile").stdout
    assert ("a living run waits for it" in told, "orphan is cancelled" in told) == (True, True)
    assert (backend.status("owned").state, backend.status("orphan").is_over) == (JobState.RUNNING, True)
    owner.close()
    assert not is_alive(state / "runs", owner.name)
    assert "owned is cancelled" in posttrain("jobs", "reconcile").stdout


def test_a_job_that_a_living_run_is_just_submitting_is_left_to_it(state):
    owner, records = Owner(state / "runs"), JobRecords(state / "jobs.db")
    assert records.add(JobRecord("new", "new", "new", 1, "local", None, state, state / "log", owner.name, time.time()))
    assert "a living run waits for it" in posttrain("jobs", "reconcile").stdout
    assert not records.latest("new").is_over
    owner.close()
    assert "it is over (the backend does not know it)" in posttrain("jobs", "reconcile").stdout
    assert records.latest("new").is_over


@pytest.mark.parametrize("arguments", [("list",), ("tail", "x"), ("cancel", "x")])
def test_where_there_are_no_jobs_that_is_said(state, arguments):
    ended = posttrain("jobs", *arguments)
    assert (ended.exit_code, "no flow has started a job" in ended.stderr) == (78, True)
    JobRecords(state / "jobs.db")
    assert posttrain("jobs", *arguments).exit_code == (0 if arguments == ("list",) else 78)
