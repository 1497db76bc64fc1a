"""Contract of a backend, as tests to inherit: a class for each backend gives `backend` and
what its jobs may be called with."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from posttrain.dispatch.backend import Cause, JobSpec, JobState, JobStatus, Resources
from posttrain.dispatch.dispatcher import CANCEL_PATIENCE_S

HOSTILE = "$(touch pwned); `touch pwned` 'a' \"b\" && touch pwned \n -x"


class BackendContract:
    """Subclasses have the fixtures `new_backend` (two GPUs) and `folder`, which jobs see under its
    own path."""

    patience_s = 30.0
    waits_for = "gpu"  # in the note of a job that waits for a free GPU, in any case

    @pytest.fixture
    def backend(self, new_backend, monkeypatch):
        """Jobs end with their test, passed or failed."""
        submitted = []

        def submit(spec):
            submitted.append(job_id := type(new_backend).submit(new_backend, spec))
            return job_id

        monkeypatch.setattr(new_backend, "submit", submit)
        yield new_backend
        for job_id in submitted:
            new_backend.cancel(job_id)

    def job(self, folder, script, *arguments, name, **resources) -> JobSpec:
        small = {"memory_gb": 0.25, "shm_gb": 0.05}  # a test's cluster is a laptop
        return JobSpec(
            name,
            (sys.executable, "-c", script, *arguments),
            folder,
            folder / f"{name}.log",
            Resources(**small | resources),
        )

    def wait(self, backend, job_id, *states, timeout_s=None) -> JobStatus:
        end = time.monotonic() + (timeout_s or self.patience_s)
        while (status := backend.status(job_id)).state not in states:
            assert time.monotonic() < end, f"still {status}"
            time.sleep(0.05)
        return status

    def bring_its_limit_near(self, backend, job_id) -> None:
        """For a backend whose limits are too coarse for a test: does to a running job what an
        administrator may."""

    def test_a_job_runs_in_its_folder_and_its_words_and_exit_code_are_kept(self, backend, folder):
        job_id = backend.submit(
            self.job(folder, "import os, sys; print(os.getcwd(), flush=True); sys.exit(75)", name="codes")
        )
        status = self.wait(backend, job_id, JobState.ENDED)
        assert (status.exit_code, status.cause) == (75, Cause.EXITED)
        assert (folder / "codes.log").read_text().strip() == str(folder)

    def test_arguments_reach_the_command_as_they_are(self, backend, folder):
        job_id = backend.submit(
            self.job(folder, "import sys; open('said', 'w').write(sys.argv[1])", HOSTILE, name="hostile")
        )
        assert self.wait(backend, job_id, JobState.ENDED).exit_code == 0
        assert (folder / "said").read_text() == HOSTILE
        assert not (folder / "pwned").exists()

    def test_a_third_job_waits_for_a_gpu_and_says_so(self, backend, folder):
        script = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
        jobs = [backend.submit(self.job(folder, script, name=f"gpu-{number}", gpus=1)) for number in range(3)]
        end = time.monotonic() + self.patience_s
        while sorted((status.state, self.waits_for in status.note.lower()) for status in map(backend.status, jobs)) != [
            (JobState.RUNNING, False), (JobState.RUNNING, False), (JobState.WAITING, True)
        ]:  # fmt: skip
            assert time.monotonic() < end
            time.sleep(0.05)
        (folder / "go").touch()
        assert {self.wait(backend, job, JobState.ENDED).exit_code for job in jobs} == {0}

    def test_a_name_is_taken_once(self, backend, folder):
        spec = self.job(folder, "open('runs', 'a').write('x'); import time; time.sleep(0.5)", name="once")
        ids = {backend.submit(spec) for _ in range(3)}
        assert len(ids) == 1
        self.wait(backend, ids.pop(), JobState.ENDED)
        assert backend.status(backend.submit(spec)).state is JobState.ENDED
        assert (folder / "runs").read_text() == "x"

    def test_a_cancelled_job_is_dead_in_five_seconds_with_all_it_started(self, backend, folder):
        script = (
            "import os, subprocess, signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\n    os._exit(0)\n"
            "open('up', 'w').write(str(child.pid)); time.sleep(600)"
        )
        job_id = backend.submit(self.job(folder, script, name="stubborn"))
        end = time.monotonic() + self.patience_s
        while not (folder / "up").exists() or not (folder / "up").read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        start = time.monotonic()
        backend.cancel(job_id)
        status = self.wait(backend, job_id, JobState.ENDED, timeout_s=5)
        assert status.cause is Cause.CANCELLED
        while alive := [process for process in psutil.process_iter() if is_of(process, folder)]:
            assert time.monotonic() - start < 5, alive
            time.sleep(0.05)

    def test_a_job_that_is_cancelled_at_once_is_dead_too(self, backend, folder):
        job_id = backend.submit(self.job(folder, "import time; time.sleep(600)", name="at-once"))
        end = time.monotonic() + CANCEL_PATIENCE_S
        while not backend.status(job_id).is_over:
            assert time.monotonic() < end
            backend.cancel(job_id)
        time.sleep(1)
        assert backend.status(job_id).cause is Cause.CANCELLED
        assert not [process for process in psutil.process_iter() if is_of(process, folder)]

    def test_a_job_that_runs_too_long_is_ended_and_its_limit_named(self, backend, folder):
        job_id = backend.submit(self.job(folder, "import time; time.sleep(600)", name="long", time_limit_s=1))
        self.bring_its_limit_near(backend, job_id)
        status = self.wait(backend, job_id, JobState.ENDED)
        assert status.cause is Cause.TIME_LIMIT
        assert status.note

    def test_nobody_knows_a_job_that_never_was(self, backend):
        assert backend.status("never-was").state is JobState.GONE
        backend.cancel("never-was")


def is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
