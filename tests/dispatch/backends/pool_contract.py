"""What every pool must do, as tests to inherit: a class for each pool gives `pool` and what its
jobs may be called with."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from posttrain.dispatch.backend import Cause, JobSpec, JobState, JobStatus, Resources
from posttrain.dispatch.cancel import PATIENCE_S

HOSTILE = "$(touch pwned); `touch pwned` 'a' \"b\" && touch pwned \n -x"


class BackendContract:
    """Subclasses have the fixtures `new_pool` (two GPUs) and `folder`, which jobs see under its own
    path."""

    patience_s = 30.0

    @pytest.fixture
    def pool(self, new_pool, monkeypatch):
        """Jobs end with their test, passed or failed."""
        submitted = []

        def submit(spec):
            submitted.append(job_id := type(new_pool).submit(new_pool, spec))
            return job_id

        monkeypatch.setattr(new_pool, "submit", submit)
        yield new_pool
        for job_id in submitted:
            new_pool.cancel(job_id)

    def job(self, folder, script, *arguments, name, **resources) -> JobSpec:
        small = {"memory_gb": 0.25, "shm_gb": 0.05}  # a test's cluster is a laptop
        return JobSpec(
            name,
            (sys.executable, "-c", script, *arguments),
            folder,
            folder / f"{name}.log",
            Resources(**small | resources),
        )

    def wait(self, pool, job_id, *states, timeout_s=None) -> JobStatus:
        end = time.monotonic() + (timeout_s or self.patience_s)
        while (status := pool.status(job_id)).state not in states:
            assert time.monotonic() < end, f"still {status}"
            time.sleep(0.05)
        return status

    def bring_its_limit_near(self, pool, job_id) -> None:
        """For a pool whose limits are too coarse for a test: does to a running job what an
        administrator may."""

    def test_a_job_runs_in_its_folder_and_its_words_and_exit_code_are_kept(self, pool, folder):
        job_id = pool.submit(
            self.job(folder, "import os, sys; print(os.getcwd(), flush=True); sys.exit(75)", name="codes")
        )
        status = self.wait(pool, job_id, JobState.ENDED)
        assert (status.exit_code, status.cause) == (75, Cause.EXITED)
        assert (folder / "codes.log").read_text().strip() == str(folder)

    def test_arguments_reach_the_command_as_they_are(self, pool, folder):
        job_id = pool.submit(
            self.job(folder, "import sys; open('said', 'w').write(sys.argv[1])", HOSTILE, name="hostile")
        )
        assert self.wait(pool, job_id, JobState.ENDED).exit_code == 0
        assert (folder / "said").read_text() == HOSTILE
        assert not (folder / "pwned").exists()

    def test_a_third_job_waits_for_a_gpu_and_says_so(self, pool, folder):
        script = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
        jobs = [pool.submit(self.job(folder, script, name=f"gpu-{number}", gpus=1)) for number in range(3)]
        end = time.monotonic() + self.patience_s
        while sorted((status.state, "gpu" in status.note.lower()) for status in map(pool.status, jobs)) != [
            (JobState.RUNNING, False), (JobState.RUNNING, False), (JobState.WAITING, True)
        ]:  # fmt: skip
            assert time.monotonic() < end
            time.sleep(0.05)
        (folder / "go").touch()
        assert {self.wait(pool, job, JobState.ENDED).exit_code for job in jobs} == {0}

    def test_a_name_is_taken_once(self, pool, folder):
        spec = self.job(folder, "open('runs', 'a').write('x'); import time; time.sleep(0.5)", name="once")
        ids = {pool.submit(spec) for _ in range(3)}
        assert len(ids) == 1
        self.wait(pool, ids.pop(), JobState.ENDED)
        assert pool.status(pool.submit(spec)).state is JobState.ENDED
        assert (folder / "runs").read_text() == "x"

    def test_a_cancelled_job_is_dead_in_five_seconds_with_all_it_started(self, pool, folder):
        script = (
            "import os, subprocess, signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
            "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\n    os._exit(0)\n"
            "open('up', 'w').write(str(child.pid)); time.sleep(600)"
        )
        job_id = pool.submit(self.job(folder, script, name="stubborn"))
        end = time.monotonic() + self.patience_s
        while not (folder / "up").exists() or not (folder / "up").read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        start = time.monotonic()
        pool.cancel(job_id)
        status = self.wait(pool, job_id, JobState.ENDED, timeout_s=5)
        assert status.cause is Cause.CANCELLED
        while alive := [process for process in psutil.process_iter() if is_of(process, folder)]:
            assert time.monotonic() - start < 5, alive
            time.sleep(0.05)

    def test_a_job_that_is_cancelled_at_once_is_dead_too(self, pool, folder):
        job_id = pool.submit(self.job(folder, "import time; time.sleep(600)", name="at-once"))
        end = time.monotonic() + PATIENCE_S
        while not pool.status(job_id).is_over:
            assert time.monotonic() < end
            pool.cancel(job_id)
        time.sleep(1)
        assert pool.status(job_id).cause is Cause.CANCELLED
        assert not [process for process in psutil.process_iter() if is_of(process, folder)]

    def test_a_job_that_runs_too_long_is_ended_and_its_limit_named(self, pool, folder):
        job_id = pool.submit(self.job(folder, "import time; time.sleep(600)", name="long", time_limit_s=1))
        self.bring_its_limit_near(pool, job_id)
        status = self.wait(pool, job_id, JobState.ENDED)
        assert status.cause is Cause.TIME_LIMIT
        assert status.note

    def test_nobody_knows_a_job_that_never_was(self, pool):
        assert pool.status("never-was").state is JobState.GONE
        pool.cancel("never-was")


def is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
