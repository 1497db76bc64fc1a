"""From a job's first attempt to its end: again where that can help, found again after a crash,
never two at once."""

import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from posttrain.dispatch.backend import Cause, JobSpec, JobState, JobStatus
from posttrain.dispatch.backends.local import LocalBackend
from posttrain.dispatch.dispatcher import Dispatcher, Work
from posttrain.dispatch.records import JobRecords
from posttrain.dispatch.retries import MAX_ATTEMPTS, next_step, reason
from posttrain.runtime.exits import ConfigurationError, Interrupted


@pytest.fixture
def records(tmp_path):
    return JobRecords(tmp_path / "jobs.db")


def dispatcher(tmp_path, records, *, backend=None, owner="run-1"):
    return Dispatcher(
        backend or LocalBackend(tmp_path / "state", num_gpus=2),
        records,
        target="local",
        owner=owner,
        logs=tmp_path,
        poll_s=0.05,
    )


def work(tmp_path, script, key="k" * 64):
    def prepare(attempt):
        folder = tmp_path / f"attempt-{attempt}"
        folder.mkdir(exist_ok=True)
        return folder

    return Work("evaluate@sft", key, (sys.executable, "-c", script, str(tmp_path)), prepare)


def test_an_interrupted_job_runs_again_in_a_folder_of_its_own_until_it_is_done(tmp_path, records):
    script = "import os, sys; n = int(os.getcwd()[-1]); sys.exit(75 if n < 3 else 0)"
    lines = []
    end = dispatcher(tmp_path, records).run(work(tmp_path, script), lines.append)
    record = end.record
    assert (record.attempt, end.status.exit_code, len(records.all())) == (3, 0, 3)
    assert [line for line in lines if "started again" in line]
    assert record.name == f"evaluate-sft-kkkkkkkkkk-{records.submitter[:6]}-3"


def test_other_records_name_the_same_work_differently(tmp_path, records):
    assert (JobRecords(tmp_path / "jobs.db").submitter, len(records.submitter)) == (records.submitter, 32)
    assert JobRecords(tmp_path / "other.db").submitter != records.submitter


@pytest.mark.parametrize("exit_code", [3, 65, 78])
def test_what_running_again_cannot_mend_runs_once(tmp_path, records, exit_code):
    end = dispatcher(tmp_path, records).run(work(tmp_path, f"import sys; sys.exit({exit_code})"), str)
    assert (end.status.exit_code, len(records.all())) == (exit_code, 1)
    assert records.latest(end.record.key).exit_code == exit_code


def test_a_flow_that_was_killed_finds_its_job_again_and_no_second_one_ever_is(tmp_path, records):
    script = "import pathlib, sys, time; open(sys.argv[1] + '/runs', 'a').write('x'); time.sleep(2)"
    flow = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from tests.dispatch.test_dispatcher import dispatcher, work, JobRecords
root = Path({str(tmp_path)!r})
dispatcher(root, JobRecords(root / "jobs.db")).run(work(root, {script!r}), str)
"""
    first = subprocess.Popen([sys.executable, "-c", flow])
    end = time.monotonic() + 30
    while not (tmp_path / "runs").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    first.kill()
    first.wait()
    lines = []
    end = dispatcher(tmp_path, records, owner="run-2").run(work(tmp_path, script), lines.append)
    record, status = end.record, end.status
    assert (status.exit_code, record.attempt, (tmp_path / "runs").read_text()) == (0, 1, "x")
    assert "found again" in lines[0]
    assert records.latest(record.key).owner == "run-2"


def left_by_a_killed_run(tmp_path, records, script):
    """A job that ended after its run had died."""
    backend = LocalBackend(tmp_path / "state", num_gpus=0)
    record = dispatcher(tmp_path, records, backend=backend, owner="run-0")._attached(work(tmp_path, script), str)
    end = time.monotonic() + 30
    while not backend.status(record.handle).is_over:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_job_that_was_killed_together_with_its_run_is_started_again_by_the_next(tmp_path, records):
    script = "import os, signal; os.getcwd().endswith('attempt-1') and os.kill(os.getpid(), signal.SIGKILL)"
    left_by_a_killed_run(tmp_path, records, script)
    lines = []
    end = dispatcher(tmp_path, records).run(work(tmp_path, script), lines.append)
    assert (end.status.exit_code, end.record.attempt) == (0, 2), lines


def test_a_failure_whose_run_had_died_is_reported_by_the_next(tmp_path, records):
    left_by_a_killed_run(tmp_path, records, "import sys; sys.exit(65)")
    end = dispatcher(tmp_path, records).run(work(tmp_path, "unused"), str)
    assert (end.status.exit_code, end.record.attempt) == (65, 1)


def test_a_job_that_is_still_on_another_target_is_not_started_twice(tmp_path, records):
    elsewhere = Dispatcher(
        LocalBackend(tmp_path / "state", num_gpus=2), records, target="elsewhere", owner="run-0", logs=tmp_path
    )
    job = work(tmp_path, "")
    record = elsewhere._new(job, attempt=1)
    assert records.add(record)
    with pytest.raises(ConfigurationError, match=f"jobs cancel {record.name}"):
        dispatcher(tmp_path, records).run(job, str)


def test_only_the_last_run_that_took_the_last_attempt_may_land_it(tmp_path, records):
    first, second = dispatcher(tmp_path, records), dispatcher(tmp_path, records, owner="run-2")
    record = first.run(work(tmp_path, ""), str).record
    assert (first.owns(record), second.owns(record)) == (True, False)
    records.set_owner(record.name, "run-2")
    assert (first.owns(record), second.owns(record)) == (False, True)
    assert records.add(replace(record, name="later", attempt=record.attempt + 1, owner="run-2"))
    assert not second.owns(record)


def test_two_runs_that_want_the_same_wait_for_one_job(tmp_path, records):
    script = "import sys, time; open(sys.argv[1] + '/runs', 'a').write('x'); time.sleep(0.5)"
    ends = []
    threads = [
        threading.Thread(
            target=lambda owner=owner: ends.append(
                dispatcher(tmp_path, records, owner=owner).run(work(tmp_path, script), str)
            )
        )
        for owner in ("run-1", "run-2")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [end.status.exit_code for end in ends] == [0, 0]
    assert (tmp_path / "runs").read_text() == "x"


def test_a_stopped_run_cancels_its_job(tmp_path, records):
    started = time.monotonic()
    with pytest.raises(Interrupted, match="cancelled"):
        dispatcher(tmp_path, records).run(
            work(tmp_path, "import time; time.sleep(600)"), str, is_stopped=lambda: time.monotonic() > started + 0.3
        )
    [record] = records.all()
    assert (record.cause, record.is_over) == (Cause.CANCELLED, True)


def test_a_run_that_is_stopped_while_its_job_is_being_started_cancels_it_until_it_is_dead(tmp_path, records):
    class Slow(LocalBackend):
        num_unheard = 3

        def cancel(self, job_id):
            self.num_unheard -= 1
            if self.num_unheard < 0:
                super().cancel(job_id)

    backend, looks = Slow(tmp_path / "state", num_gpus=0), iter([False] * 3)
    with pytest.raises(Interrupted, match="cancelled"):
        dispatcher(tmp_path, records, backend=backend).run(
            work(tmp_path, "import time; time.sleep(600)"), str, is_stopped=lambda: next(looks, True)
        )
    assert records.all()[0].cause is Cause.CANCELLED

    backend.num_unheard = 3
    name = backend.submit(JobSpec("another", ("sleep", "600"), tmp_path, tmp_path / "log"))
    assert records.add(
        replace(records.all()[0], name=name, key="another", job_id=name, ended_at=None, cause=None, exit_code=None)
    )
    dispatcher(tmp_path, records, backend=backend).cancel_all()
    assert records.latest("another").cause is Cause.CANCELLED


def test_a_job_that_is_just_being_submitted_is_not_taken_for_over(tmp_path, records):
    first = dispatcher(tmp_path, records)
    record = first._new(work(tmp_path, ""), attempt=1)
    assert records.add(record)
    first.cancel_all()  # its backend knows nothing of it yet
    assert (records.latest(record.key).is_over, first.has_job(record.key)) == (False, True)
    assert dispatcher(tmp_path, records, owner="run-2").run(work(tmp_path, ""), str).record.name == record.name


def test_a_backend_that_cannot_be_reached_is_asked_again(tmp_path, records):
    class Down(LocalBackend):
        num_failures = 2

        def status(self, job_id):
            self.num_failures -= 1
            if self.num_failures >= 0:
                raise Interrupted("its controller is down")
            return super().status(job_id)

    lines = []
    down = Down(tmp_path / "state", num_gpus=0)
    assert dispatcher(tmp_path, records, backend=down).run(work(tmp_path, ""), lines.append).status.exit_code == 0
    assert len([line for line in lines if "cannot be reached" in line]) == 1


@pytest.mark.parametrize(
    ("exit_code", "cause", "attempt", "expected"),
    [
        (0, Cause.EXITED, 1, "done"),
        (75, Cause.EXITED, 1, "again"),
        (75, Cause.EXITED, MAX_ATTEMPTS, "failed"),
        *((None, cause, 1, "again") for cause in (Cause.PREEMPTED, Cause.NODE_LOST)),
        *((None, cause, 1, "failed") for cause in (Cause.OUT_OF_DISK, Cause.TIME_LIMIT, Cause.CANCELLED)),
        (137, Cause.OUT_OF_MEMORY, 1, "failed"),
        *((code, Cause.EXITED, 1, "failed") for code in (1, 70, 78)),
    ],
)
def test_the_next_step_depends_on_the_jobs_end(exit_code, cause, attempt, expected):
    status = JobStatus(JobState.ENDED, exit_code, cause)
    assert next_step(status, attempt=attempt) == expected
    assert reason(status, attempt=attempt)
