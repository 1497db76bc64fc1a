"""Nothing of a job on this machine lives once the backend says that it is over, also where its
supervisor was killed."""

import os
import signal
import sys

import psutil
import pytest

from posttrain.dispatch.backend import Cause, JobSpec, JobState, Resources
from posttrain.dispatch.backends import local, local_job
from posttrain.dispatch.backends.local import LocalBackend
from tests.dispatch.backends.backend_contract import is_of
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
def backend(tmp_path, folder):
    yield LocalBackend(tmp_path / "state", num_gpus=1)
    for process in living(folder) + living_supervisors(tmp_path):
        process.kill()


def start(backend, folder, more="", name="lost", gpus=0):
    backend.submit(
        JobSpec(
            name, (sys.executable, "-c", FAMILY.format(more=more)), folder, folder / f"{name}.log", Resources(gpus=gpus)
        )
    )
    wait_until((folder / "up").exists)
    assert len(living(folder)) >= 3


def test_nothing_of_a_job_outlives_its_killed_supervisor_once_the_backend_says_that_it_is_over(
    backend, folder, tmp_path
):
    start(backend, folder)
    kill(living_supervisors(tmp_path))
    assert len(living(folder)) >= 2  # what the command has started; or this tests nothing
    assert backend.status("lost").cause is Cause.NODE_LOST
    assert not living(folder)


@pytest.mark.needs_killed
def test_what_cleared_its_environment_below_a_process_that_did_not_is_dead_too(backend, folder, tmp_path):
    start(
        backend,
        folder,
        more='subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={}, start_new_session=True)',
    )
    kill(living_supervisors(tmp_path))
    assert backend.status("lost").is_over
    assert not living(folder)


@pytest.mark.needs_killed
def test_a_slot_is_taken_when_nothing_of_its_last_holder_lives(backend, folder, tmp_path):
    start(backend, folder, gpus=1)
    kill(living_supervisors(tmp_path))
    assert len(living(folder)) >= 3
    second = tmp_path / "second"
    second.mkdir()
    backend.submit(
        JobSpec(
            "next", (sys.executable, "-c", "import time; time.sleep(600)"), second, second / "log", Resources(gpus=1)
        )
    )
    wait_until(lambda: backend.status("next").state is JobState.RUNNING)
    assert not living(folder)
    backend.cancel("next")


@pytest.mark.needs_killed
def test_other_jobs_and_who_asks_live_on(backend, folder, tmp_path, monkeypatch):
    start(backend, folder)
    other = tmp_path / "other"
    other.mkdir()
    backend.submit(JobSpec("lost-2", (sys.executable, "-c", FAMILY.format(more="")), other, other / "log", Resources()))
    wait_until((other / "up").exists)
    before = [process.pid for process in living(other)]
    kill(living_supervisors(tmp_path, "lost"))
    monkeypatch.setenv("POSTTRAIN_JOB", str(backend._job("lost")))
    assert backend.status("lost").is_over
    assert ([process.pid for process in living(other)], backend.status("lost-2").state) == (before, JobState.RUNNING)
    backend.cancel("lost-2")


@pytest.mark.needs_killed
def test_a_cancelled_job_whose_supervisor_is_dead_is_dead(backend, folder, tmp_path):
    start(backend, folder)
    kill(living_supervisors(tmp_path))
    backend.cancel("lost")
    assert not living(folder)
    assert backend.status("lost").is_over


def test_while_something_of_it_cannot_be_killed_a_job_is_not_over_and_its_slot_not_free(
    backend, folder, tmp_path, monkeypatch
):
    """Behave like a process that waits for a broken GPU's driver."""
    start(backend, folder, gpus=1)
    kill(living_supervisors(tmp_path))
    with monkeypatch.context() as patch:
        for module in (local, local_job):
            patch.setattr(module, "kill_marked", lambda _: [4711])
        status = backend.status("lost")
        assert (status.state, "4711" in status.note) == (JobState.RUNNING, True)
        assert local_job._take(tmp_path / "state" / "slots" / "gpu-0.lock", tmp_path / "next") is None
    assert backend.status("lost").cause is Cause.NODE_LOST
    with local_job._take(tmp_path / "state" / "slots" / "gpu-0.lock", tmp_path / "next") as slot:
        assert not slot.closed


def test_a_slot_that_was_given_back_names_nobody(backend, folder, tmp_path):
    start(backend, folder, gpus=1)
    assert (tmp_path / "state" / "slots" / "gpu-0.lock").read_text() == str(backend._job("lost"))
    backend.cancel("lost")
    backend.submit(JobSpec("brief", ("true",), folder, folder / "log", Resources(gpus=1)))
    wait_until(lambda: backend.status("brief").is_over)
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
