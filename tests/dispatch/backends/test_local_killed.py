"""What lives of a job on this machine after parts of it were killed: nothing, once the pool says
that it is over."""

import os
import signal
import sys

import psutil
import pytest

from posttrain.dispatch.backend import Cause, JobSpec, JobState, Resources
from posttrain.dispatch.backends import local, local_job
from posttrain.dispatch.backends.local import LocalBackend
from tests.dispatch.backends.pool_contract import is_of
from tests.waiting import wait_until

# A child in a session of its own, a daemon (two forks), and their parent, which says when all are
# there.
FAMILY = """
import os, subprocess, sys, time
def daemon(environment):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], environment)
        os._exit(0)
    os.wait()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
daemon(dict(os.environ))
{more}
time.sleep(0.3)
open("up", "w").close()
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


@pytest.fixture
def pool(tmp_path, folder):
    yield LocalBackend(tmp_path / "state", num_gpus=1)
    for process in living(folder) + living_supervisors(tmp_path):
        process.kill()


def start(pool, folder, more="", name="lost", gpus=0):
    pool.submit(
        JobSpec(
            name, (sys.executable, "-c", FAMILY.format(more=more)), folder, folder / f"{name}.log", Resources(gpus=gpus)
        )
    )
    wait_until((folder / "up").exists)
    assert len(living(folder)) >= 3


def test_nothing_of_a_job_outlives_its_killed_supervisor(pool, folder, tmp_path):
    start(pool, folder)
    kill(living_supervisors(tmp_path)[:1])
    wait_until(lambda: not living(folder), limit_s=5)  # nobody has asked the pool
    wait_until(lambda: pool.status("lost").is_over)
    assert pool.status("lost").cause is Cause.NODE_LOST


@pytest.mark.needs_killed
def test_one_that_cleared_its_environment_and_turned_into_a_daemon_does_not_either(pool, folder, tmp_path):
    start(pool, folder, more="daemon({})")
    assert len(living(folder)) == 4
    kill(living_supervisors(tmp_path)[:1])
    wait_until(lambda: pool.status("lost").is_over, limit_s=5)
    assert not living(folder)


@pytest.mark.needs_killed
def test_whichever_process_of_the_supervisor_is_killed_the_job_is_lost_and_dead(pool, folder, tmp_path):
    start(pool, folder)
    kill(living_supervisors(tmp_path)[-1:])
    wait_until(lambda: pool.status("lost").is_over, limit_s=5)
    assert (living(folder), pool.status("lost").cause) == ([], Cause.NODE_LOST)


@pytest.mark.needs_killed
def test_when_every_process_above_is_killed_at_once_what_is_left_is_dead_before_the_job_is_over(pool, folder, tmp_path):
    start(pool, folder)
    above = living_supervisors(tmp_path)
    kill([*above, above[-1].children()[0]])
    assert len(living(folder)) >= 2  # or this tests nothing
    assert pool.status("lost").cause is Cause.NODE_LOST
    assert not living(folder)


@pytest.mark.needs_killed
def test_what_cleared_its_environment_below_a_process_that_did_not_is_dead_too(pool, folder, tmp_path):
    start(
        pool,
        folder,
        more='subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={}, start_new_session=True)',
    )
    kill(living_supervisors(tmp_path))
    assert pool.status("lost").is_over
    assert not living(folder)


@pytest.mark.needs_killed
def test_a_slot_is_taken_when_nothing_of_its_last_holder_lives(pool, folder, tmp_path):
    start(pool, folder, gpus=1)
    kill(living_supervisors(tmp_path))
    assert len(living(folder)) >= 3
    second = tmp_path / "second"
    second.mkdir()
    pool.submit(
        JobSpec(
            "next", (sys.executable, "-c", "import time; time.sleep(600)"), second, second / "log", Resources(gpus=1)
        )
    )
    wait_until(lambda: pool.status("next").state is JobState.RUNNING)
    assert not living(folder)
    pool.cancel("next")


@pytest.mark.needs_killed
def test_other_jobs_and_who_asks_live_on(pool, folder, tmp_path, monkeypatch):
    start(pool, folder)
    other = tmp_path / "other"
    other.mkdir()
    pool.submit(JobSpec("lost-2", (sys.executable, "-c", FAMILY.format(more="")), other, other / "log", Resources()))
    wait_until((other / "up").exists)
    before = [process.pid for process in living(other)]
    kill(living_supervisors(tmp_path, "lost"))
    monkeypatch.setenv("POSTTRAIN_JOB", str(pool._job("lost")))
    assert pool.status("lost").is_over
    assert ([process.pid for process in living(other)], pool.status("lost-2").state) == (before, JobState.RUNNING)
    pool.cancel("lost-2")


@pytest.mark.needs_killed
def test_a_cancelled_job_whose_supervisor_is_dead_is_dead(pool, folder, tmp_path):
    start(pool, folder)
    kill(living_supervisors(tmp_path))
    pool.cancel("lost")
    assert not living(folder)
    assert pool.status("lost").is_over


def test_while_something_of_it_cannot_be_killed_a_job_is_not_over_and_its_slot_not_free(
    pool, folder, tmp_path, monkeypatch
):
    """As a process that waits for a broken GPU's driver."""
    start(pool, folder, gpus=1)
    kill(living_supervisors(tmp_path))
    with monkeypatch.context() as patch:
        for module in (local, local_job):
            patch.setattr(module, "kill_marked", lambda _: [4711])
        status = pool.status("lost")
        assert (status.state, "4711" in status.note) == (JobState.RUNNING, True)
        assert local_job._take(tmp_path / "state" / "slots" / "gpu-0.lock", tmp_path / "next") is None
    assert pool.status("lost").cause is Cause.NODE_LOST
    with local_job._take(tmp_path / "state" / "slots" / "gpu-0.lock", tmp_path / "next") as slot:
        assert not slot.closed


def test_a_slot_that_was_given_back_names_nobody(pool, folder, tmp_path):
    start(pool, folder, gpus=1)
    assert (tmp_path / "state" / "slots" / "gpu-0.lock").read_text() == str(pool._job("lost"))
    kill(living_supervisors(tmp_path)[:1])
    wait_until(lambda: pool.status("lost").is_over)
    assert (tmp_path / "state" / "slots" / "gpu-0.lock").read_text() == ""
    pool.submit(JobSpec("brief", ("true",), folder, folder / "log", Resources(gpus=1)))
    wait_until(lambda: pool.status("brief").is_over)
    assert (tmp_path / "state" / "slots" / "gpu-0.lock").read_text() == ""


def living(folder):
    return [process for process in psutil.process_iter() if is_of(process, folder)]


def living_supervisors(tmp_path, name=""):
    """Parents first."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        is_ours = any(
            word.startswith(str(tmp_path / "state" / "jobs")) and word.endswith(f"/{name or word.rpartition('/')[2]}")
            for word in words
        )
        if "posttrain.dispatch.backends.local_job" in words and is_ours:
            found.append(process)
    return sorted(found, key=lambda process: (process.create_time(), process.pid))


def kill(processes):
    """At once: none of them sees another die."""
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    psutil.wait_procs(processes, timeout=5)
