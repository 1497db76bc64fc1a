"""A real SLURM on this machine (`make test NEEDS=slurm`): the contract of every backend, and what
only this one can be asked."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.dispatch.backend import Cause, JobSpec, JobState, Resources
from posttrain.dispatch.backends.slurm import ANSWER_LIMIT_S, SlurmBackend
from posttrain.dispatch.dispatcher import Dispatcher, Work
from posttrain.dispatch.records import JobRecords
from posttrain.dispatch.retries import next_step
from posttrain.pipeline.results import record_result
from posttrain.pipeline.snapshot import Snapshot, freeze
from posttrain.runtime.exits import ConfigurationError, Interrupted
from tests.conftest import REPOSITORY
from tests.dispatch.backends.backend_contract import BackendContract
from tests.pipeline.test_snapshot import dvc, sh
from tests.waiting import wait_until

pytest_plugins = ["tests.real.slurm_fixtures"]
pytestmark = [pytest.mark.needs_slurm, pytest.mark.usefixtures("_slurm")]
FORGET_S = 120  # the controller forgets ended jobs once a minute
SLEEP = "import pathlib, time; pathlib.Path('up').touch(); time.sleep(600)"
WAIT_FOR_GO = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
CHECKPOINT = """
import pathlib, signal, sys, time
def checkpoint(*_):
    time.sleep(2)
    pathlib.Path('checkpoint').write_text('kept')
    sys.exit(75)
if not pathlib.Path('checkpoint').exists():
    signal.signal(signal.SIGUSR1, checkpoint)
    pathlib.Path('up').touch()
    time.sleep(600)
"""
DVC_YAML = """
stages:
  make:
    cmd: echo x >> "$RUNS" && sleep 4 && grep x params.yaml > made
    deps: [seed]
    params: [x]
    outs: [made]
"""


def slurm(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def named(name: str) -> str:
    """The accounting remembers the names of earlier runs."""
    return f"{name}-{uuid.uuid4().hex[:12]}"


class TestSlurmBackend(BackendContract):
    patience_s = 60.0
    waits_for = "resources"  # SLURM's reason

    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "a %j folder;\n$(touch pwned) \\ 'x'"
        folder.mkdir()
        return folder

    @pytest.fixture
    def new_backend(self, tmp_path):
        return SlurmBackend(tmp_path / "state")

    def job(self, folder, script, *arguments, name, **resources) -> JobSpec:
        return replace(
            super().job(folder, script, *arguments, name=name, **{"memory_gb": 0.5} | resources), name=named(name)
        )

    def bring_its_limit_near(self, backend, job_id):
        """SLURM's limits are whole minutes: the clock is turned, the end is SLURM's own."""
        self.wait(backend, job_id, JobState.RUNNING)
        command = ("scontrol", "update", f"JobId={number_of(job_id)}", "EndTime=now")
        # refused within the second in which the job started: it would have no time at all
        wait_until(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)

    def test_a_job_that_heeds_the_warning_before_its_limit_is_at_its_limit_too(self, backend, folder):
        job_id = backend.submit(self.job(folder, CHECKPOINT, name="warned", time_limit_s=60))
        wait_until((folder / "up").exists)
        slurm("scontrol", "update", f"JobId={number_of(job_id)}", "EndTime=now+1minute")
        status = self.wait(backend, job_id, JobState.ENDED, timeout_s=120)
        assert (status.exit_code, status.cause, next_step(status, attempt=1)) == (75, Cause.TIME_LIMIT, "failed")
        assert (folder / "checkpoint").exists()

    def test_why_a_job_waits_is_said_in_slurms_word_and_in_ours(self, backend, folder):
        jobs = [backend.submit(self.job(folder, WAIT_FOR_GO, name="full", gpus=1)) for _ in range(4)]
        notes = {"Resources", "Priority"}
        wait_until(lambda: {backend.status(job_id).note for job_id in jobs} == {"", *notes})
        (folder / "go").touch()

    @pytest.mark.parametrize("wanted", [{"gpus": 9}, {"cpus": 1000}, {"memory_gb": 1e5}, {"time_limit_s": 10**6}])
    def test_what_no_node_can_give_is_refused_at_submission_with_what_to_do(self, backend, folder, wanted):
        with pytest.raises(
            ConfigurationError, match=r"SLURM refuses impossible.*GPUs.*Running again cannot help: ask for"
        ):
            backend.submit(spec := self.job(folder, "", name="impossible", **wanted))
        assert self.wait(backend, backend.submit(replace(spec, resources=Resources())), JobState.ENDED).exit_code == 0

    def test_an_unknown_partition_is_refused(self, tmp_path, folder):
        with pytest.raises(ConfigurationError, match="nowhere"):
            SlurmBackend(tmp_path / "state", options=["--partition=nowhere"]).submit(
                self.job(folder, "", name="astray")
            )

    def test_too_much_memory_is_told_from_a_failure(self, backend, folder):
        script = "block = bytearray(400 << 20); block[::4096] = block[::4096]; import time; time.sleep(60)"
        status = self.wait(
            backend, backend.submit(self.job(folder, script, name="large", memory_gb=0.1)), JobState.ENDED
        )
        assert (status.cause, next_step(status, attempt=1)) == (Cause.OUT_OF_MEMORY, "failed")

    def test_a_job_whose_node_died_may_run_again_and_slurm_itself_does_not_start_it(self, backend, folder):
        job_id = backend.submit(self.job(folder, "open('runs', 'a').write('x');" + SLEEP, name="lost"))
        wait_until((folder / "up").exists)
        node = slurm("squeue", "--noheader", f"--jobs={number_of(job_id)}", "--format=%N").strip()
        slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        try:
            status = self.wait(backend, job_id, JobState.ENDED)
        finally:
            subprocess.run(
                ["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False
            )  # it may have come back by itself
        assert (status.cause, next_step(status, attempt=1)) == (Cause.NODE_LOST, "again")
        assert (folder / "runs").read_text() == "x"
        wait_until(lambda: "idle" in slurm("sinfo", "--noheader", f"--nodes={node}", "--partition=gpu", "--format=%T"))

    def test_a_preempted_job_writes_its_checkpoint_and_goes_on_from_it_as_another_job(self, tmp_path, backend, folder):
        spot = SlurmBackend(tmp_path / "state", options=["--partition=spot"])
        records, ends = JobRecords(tmp_path / "jobs.db"), []
        dispatcher = Dispatcher(spot, records, target="spot", owner="run", logs=tmp_path, poll_s=0.2)
        work = Work(
            "train",
            named(""),
            (sys.executable, "-c", CHECKPOINT),
            lambda attempt: folder,
            Resources(gpus=1, memory_gb=0.5),
        )
        work = replace(work, key=uuid.uuid4().hex)
        thread = threading.Thread(target=lambda: ends.append(dispatcher.run(work, print)))
        thread.start()
        wait_until((folder / "up").exists)
        for _ in range(2):
            backend.submit(self.job(folder, WAIT_FOR_GO, name="urgent", gpus=1))
        wait_until(lambda: records.all()[-1].is_over)
        first = records.all()[-1]
        assert (first.exit_code, (folder / "checkpoint").read_text()) == (75, "kept")
        (folder / "go").touch()
        thread.join(self.patience_s)
        [end] = ends
        assert (end.record.attempt, end.num_preempted, end.status.exit_code, end.record.job_id != first.job_id) == (
            2,
            1,
            0,
            True,
        )

    def test_a_job_that_heeds_no_warning_is_preempted_all_the_same(self, tmp_path, backend, folder):
        spot = SlurmBackend(tmp_path / "state", options=["--partition=spot"])
        job_id = spot.submit(self.job(folder, SLEEP, name="deaf", gpus=1))
        wait_until((folder / "up").exists)
        urgent = [backend.submit(self.job(folder, WAIT_FOR_GO, name="urgent", gpus=1)) for _ in range(2)]
        assert self.wait(spot, job_id, JobState.ENDED).cause is Cause.PREEMPTED
        (folder / "go").touch()
        assert [self.wait(backend, one, JobState.ENDED).exit_code for one in urgent] == [0, 0]

    def test_a_name_is_found_and_an_end_is_read_when_only_the_accounting_knows_the_job(self, backend, folder):
        scripts = {
            "three": "import sys; sys.exit(3)",
            "killed": "import os; os.kill(os.getpid(), 11)",
            "fine": "",
            "ended": SLEEP,
        }
        specs = [self.job(folder, script, name=name) for name, script in scripts.items()]
        jobs = [backend.submit(spec) for spec in specs]
        wait_until((folder / "up").exists)
        backend.cancel(jobs[-1])
        live = [self.wait(backend, job_id, JobState.ENDED) for job_id in jobs]
        assert [(status.exit_code, status.cause) for status in live[:3]] == [
            (3, Cause.EXITED),
            (139, Cause.EXITED),
            (0, Cause.EXITED),
        ]
        for job_id in jobs:
            wait_until(lambda job_id=job_id: not is_known_to_controller(job_id), limit_s=FORGET_S)
        assert [backend.status(job_id).cause for job_id in jobs] == [status.cause for status in live]
        assert [backend.status(job_id).exit_code for job_id in jobs[:3]] == [3, 139, 0]
        assert [backend.submit(spec) for spec in specs] == jobs
        backend.cancel(jobs[0])

    def test_submitters_that_come_at_once_or_die_meanwhile_start_one_job(self, tmp_path, backend, folder):
        name = named("once")
        submit = (
            "import sys; from pathlib import Path; from posttrain.dispatch.backend import JobSpec\n"
            "from posttrain.dispatch.backends.slurm import SlurmBackend\n"
            "folder = Path(sys.argv[2])\n"
            "command = ('sh', '-c', 'echo x >> runs; sleep 3')\n"
            f"print(SlurmBackend(Path(sys.argv[1])).submit(JobSpec({name!r}, command, folder, folder / 'log')))"
        )
        command = [sys.executable, "-c", submit, str(tmp_path / "state"), str(folder)]
        slow = tmp_path / "bin" / "sbatch"  # the submitter dies while it is on its way
        slow.parent.mkdir()
        slow.write_text(f'#!/bin/sh\ntouch "$0.up"\nsleep 2\nexec {shutil.which("sbatch")} "$@"\n')
        slow.chmod(0o755)
        first = subprocess.Popen(command, env={**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"})
        wait_until(slow.with_name("sbatch.up").exists)
        first.kill()
        first.wait()
        others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        ids = {other.communicate()[0].strip() for other in others}
        assert len(ids) == 1
        assert self.wait(backend, ids.pop(), JobState.ENDED).exit_code == 0
        assert (folder / "runs").read_text() == "x\n"
        assert backend.status(name).state is JobState.ENDED

    def test_no_key_of_the_submitter_is_in_the_job_or_in_what_slurm_keeps(self, backend, folder, monkeypatch):
        monkeypatch.setenv("SECRET_API_KEY", "s3cr3t-of-the-submitter")
        monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
        spec = self.job(
            folder, "import os, pathlib; print(dict(os.environ), flush=True);" + WAIT_FOR_GO, name="environment"
        )
        job_id = backend.submit(replace(spec, environment={"GIVEN": "a 'b'\n$HOME"}))
        wait_until(lambda: spec.log.exists() and "}" in spec.log.read_text())
        said = eval(spec.log.read_text())
        assert (said["GIVEN"], said["PATH"], said["CUDA_VISIBLE_DEVICES"]) == ("a 'b'\n$HOME", os.environ["PATH"], "")
        kept = [
            path.read_bytes()
            for path in (Path(os.environ["SLURM_CONF"]).parents[1] / "ctld").rglob(f"job.{number_of(job_id)}/*")
        ]
        assert len(kept) == 2  # the script and the environment
        assert not [text for text in [spec.log.read_bytes(), *kept] if b"s3cr3t" in text]
        (folder / "go").touch()
        assert self.wait(backend, job_id, JobState.ENDED).exit_code == 0

    def test_a_stopped_run_is_over_when_its_job_is_dead(self, tmp_path, backend, folder):
        records = JobRecords(tmp_path / "jobs.db")
        dispatcher = Dispatcher(backend, records, target="slurm", owner="run", logs=tmp_path, poll_s=0.2)
        script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEP
        work = Work(
            "train", uuid.uuid4().hex, (sys.executable, "-c", script), lambda attempt: folder, Resources(memory_gb=0.5)
        )
        with pytest.raises(Interrupted, match="was cancelled"):
            dispatcher.run(work, print, is_stopped=(folder / "up").exists)
        [record] = records.all()
        assert (record.cause, backend.status(record.job_id).state) == (Cause.CANCELLED, JobState.ENDED)

    def test_while_the_controller_is_down_that_is_said_in_time_and_jobs_live_on(self, backend, folder):
        job_id = backend.submit(self.job(folder, "import time; time.sleep(15)", name="steady"))
        next_one = self.job(folder, "", name="next")
        self.wait(backend, job_id, JobState.RUNNING)
        controller = int((Path(os.environ["SLURM_CONF"]).parents[1] / "run" / "slurmctld.pid").read_text())
        os.kill(controller, signal.SIGTERM)
        try:
            down_at = time.monotonic()
            for ask in (
                lambda: backend.status(job_id),
                lambda: backend.submit(next_one),
                lambda: backend.cancel(job_id),
            ):
                start = time.monotonic()
                with pytest.raises(Interrupted, match=r"cannot be reached|has not answered"):
                    ask()
                assert time.monotonic() - start < ANSWER_LIMIT_S + 5
            time.sleep(max(down_at + 20 - time.monotonic(), 0))
        finally:
            slurm(str(REPOSITORY / "infra" / "slurm" / "dev_cluster.sh"), "up")
        assert self.wait(backend, job_id, JobState.ENDED).exit_code == 0
        assert self.wait(backend, backend.submit(next_one), JobState.ENDED).exit_code == 0


def number_of(job_id: str) -> str:
    return job_id.split(":")[0]


def is_known_to_controller(job_id: str) -> bool:
    return (
        subprocess.run(["scontrol", "show", "job", number_of(job_id)], capture_output=True, check=False).returncode == 0
    )


def flow(root: Path, scratch: Path, owner: str, told: list[str]) -> Snapshot:
    """A stage from its snapshot through SLURM to its result: what a flow does."""

    def snapshot() -> Snapshot:
        return freeze(root, "make", scratch / uuid.uuid4().hex)

    environment = {"PYTHONPATH": str(REPOSITORY), "RUNS": str(scratch / "runs")}
    command = (sys.executable, "-m", "posttrain.pipeline.job.shared_disk", "make")
    work = Work("make", snapshot().key, command, lambda attempt: snapshot().folder, Resources(memory_gb=1), environment)
    dispatcher = Dispatcher(
        SlurmBackend(scratch / "state"),
        JobRecords(scratch / "jobs.db"),
        target="slurm",
        owner=owner,
        logs=scratch,
        poll_s=0.2,
    )
    end = dispatcher.run(work, told.append)
    record, status = end.record, end.status
    assert status.exit_code == 0, record.log.read_text()
    return Snapshot(record.folder, "make", record.key, has_run=True)


def test_a_stage_runs_on_slurm_is_found_again_by_another_flow_and_lands(tmp_path):
    root = tmp_path / "root; $(touch pwned)"
    root.mkdir()
    sh(root, "git", "init", "--quiet")
    dvc(root, "init", "--quiet")
    seed = uuid.uuid4().hex  # of the key and so of the job's name
    for name, text in {"dvc.yaml": DVC_YAML, "params.yaml": "x: 1\n", "seed": seed}.items():
        (root / name).write_text(text)
    script = (
        f"import sys; from pathlib import Path; from {__name__} import flow; flow(Path(sys.argv[1]), "
        "Path(sys.argv[2]), 'run-1', [])"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", script, str(root), str(tmp_path)], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    wait_until((tmp_path / "runs").exists)
    first.kill()
    first.wait()
    told = []
    snapshot = flow(root, tmp_path, "run-2", told)
    assert "found again, started by an earlier run" in told[0]
    assert not record_result(root, snapshot)
    assert ((root / "made").read_text(), (tmp_path / "runs").read_text()) == ("x: 1\n", "x\n")
    assert "up to date" in dvc(root, "status", "make")
