"""Jobs on this machine: the contract, and what only this backend can be asked."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from posttrain.dispatch.backend import Cause, JobState
from posttrain.dispatch.backends import local
from posttrain.dispatch.backends.local import LocalBackend
from posttrain.dispatch.backends.local_job import supervise
from posttrain.runtime.exits import ConfigurationError
from tests.dispatch.backends.backend_contract import BackendContract


class TestLocalBackend(BackendContract):
    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "a folder; $(touch pwned)"
        folder.mkdir()
        return folder

    @pytest.fixture
    def new_backend(self, tmp_path):
        return LocalBackend(tmp_path / "state", num_gpus=2)

    def test_each_job_sees_gpus_of_its_own_and_one_without_sees_none(self, backend, folder):
        script = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(0.5)"
        jobs = [
            backend.submit(self.job(folder, script, name=name, gpus=gpus))
            for name, gpus in (("a", 1), ("b", 1), ("c", 0))
        ]
        for job in jobs:
            self.wait(backend, job, JobState.ENDED)
        assert sorted((folder / f"{name}.log").read_text().strip() for name in "abc") == ["", "0", "1"]

    def test_the_gpus_are_those_that_the_person_lets_be_seen(self, backend, folder, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-7c")
        script = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(0.5)"
        for job in [backend.submit(self.job(folder, script, name=name, gpus=1)) for name in ("a", "b")]:
            self.wait(backend, job, JobState.ENDED)
        assert sorted((folder / f"{name}.log").read_text().strip() for name in "ab") == ["5", "GPU-7c"]
        with pytest.raises(ConfigurationError, match="Set num_gpus to 2"):
            LocalBackend(tmp_path / "state", num_gpus=3).submit(self.job(folder, script, name="c", gpus=1))

    def test_a_supervisor_that_died_at_its_start_is_a_lost_node(self, backend, folder, monkeypatch):
        monkeypatch.setattr(local.sys, "executable", "/bin/false")
        spec = self.job(folder, "", name="unborn")
        assert backend.status(backend.submit(spec)).state is JobState.WAITING
        monkeypatch.setattr(local, "START_PATIENCE_S", 0.0)
        assert backend.status("unborn").cause is Cause.NODE_LOST
        assert backend.status(backend.submit(spec)).cause is Cause.NODE_LOST

    def test_a_supervisor_that_comes_after_the_end_runs_nothing(self, backend, folder, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(local.subprocess, "Popen", lambda *_, **__: None)
            backend.submit(self.job(folder, "open('ran', 'w')", name="late"))
        backend.cancel("late")
        supervise(backend._job("late"), folder / "slots", 2)
        assert backend.status("late").cause is Cause.CANCELLED
        assert not (folder / "ran").exists()

    def test_a_job_outlives_its_submitter_and_is_found_again(self, tmp_path, folder):
        submit = (
            "import sys; from pathlib import Path; from posttrain.dispatch.backend import JobSpec\n"
            "from posttrain.dispatch.backends.local import LocalBackend\n"
            "folder = Path(sys.argv[2])\n"
            "LocalBackend(Path(sys.argv[1]), num_gpus=2).submit(JobSpec('orphan', ('sleep', '1'), folder, "
            "folder / 'log'))\n"
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", submit, str(tmp_path / "state"), str(folder)], check=False)
        backend = LocalBackend(tmp_path / "state", num_gpus=2)
        assert self.wait(backend, "orphan", JobState.ENDED).exit_code == 0

    def test_many_threads_may_cancel_one_job(self, backend, folder):
        backend.submit(self.job(folder, "import time; time.sleep(600)", name="wanted"))
        self.wait(backend, "wanted", JobState.RUNNING)
        with ThreadPoolExecutor(8) as threads:
            for cancelled in [threads.submit(backend.cancel, "wanted") for _ in range(8)]:
                cancelled.result()
        assert (backend.status("wanted").cause, backend.status("wanted").exit_code) == (Cause.CANCELLED, None)

    def test_a_job_that_is_being_cancelled_never_looks_lost_or_failed(self, backend, folder):
        backend.submit(self.job(folder, "import time; time.sleep(600)", name="watched"))
        self.wait(backend, "watched", JobState.RUNNING)
        with ThreadPoolExecutor(1) as threads:
            cancelled, seen = threads.submit(backend.cancel, "watched"), set()
            while not cancelled.done():
                seen.add(backend.status("watched").cause)
        assert seen <= {None, Cause.CANCELLED}
        assert backend.status("watched").cause is Cause.CANCELLED

    def test_a_preempted_job_may_write_its_checkpoint(self, backend, folder):
        script = (
            "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); open('up', 'w'); "
            "time.sleep(600)"
        )
        backend.submit(self.job(folder, script, name="preempted"))
        self.wait(backend, "preempted", JobState.RUNNING)
        while not (folder / "up").exists():
            pass
        supervisor = next(
            process
            for process in psutil.process_iter(["cmdline"])
            if f"jobs{os.sep}preempted" in " ".join(process.info["cmdline"] or [])
        )
        supervisor.terminate()
        assert self.wait(backend, "preempted", JobState.ENDED).exit_code == 75

    @pytest.mark.parametrize(
        ("name", "gpus"), [("", 0), ("a b", 0), ("../up", 0), ("A", 0), ("x" * 64, 0), ("fine", 3)]
    )
    def test_what_could_never_run_is_refused(self, backend, folder, name, gpus):
        with pytest.raises(ConfigurationError):
            backend.submit(self.job(folder, "", name=name, gpus=gpus))

    def test_a_stage_hears_nothing_of_the_flows_server_keys(self, backend, folder, monkeypatch):
        for name in ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_KEY"):
            monkeypatch.setenv(name, "secret")
        monkeypatch.setenv("WANDB_API_KEY", "the-stages-own")
        script = "import os; print(*(name for name in os.environ if os.environ[name] in ('secret', 'the-stages-own')))"
        self.wait(backend, backend.submit(self.job(folder, script, name="asks")), JobState.ENDED)
        assert (folder / "asks.log").read_text().split() == ["WANDB_API_KEY"]

    def test_what_a_job_leaves_is_for_its_user_alone_and_holds_no_key_of_the_environment(
        self, backend, folder, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-written-down")
        self.wait(backend, backend.submit(self.job(folder, "print('hello')", name="private", gpus=1)), JobState.ENDED)
        left = [folder / "private.log", tmp_path / "state", *(tmp_path / "state").rglob("*")]
        expected = "private.log spec.json start.json end.json lock queue.lock gpu-0.lock"
        assert {path.name for path in left} >= set(expected.split())
        modes = {(path.is_dir(), oct(path.stat().st_mode & 0o777)) for path in left}
        assert modes == {(True, "0o700"), (False, "0o600")}
        assert not [path for path in left if path.is_file() and b"not-to-be-written-down" in path.read_bytes()]

    def test_a_command_that_is_not_there_is_named(self, backend, folder):
        spec = self.job(folder, "", name="absent")
        status = self.wait(
            backend, backend.submit(type(spec)(spec.name, ("no-such-program",), spec.folder, spec.log)), JobState.ENDED
        )
        assert (status.exit_code, "no-such-program" in status.note) == (127, True)
