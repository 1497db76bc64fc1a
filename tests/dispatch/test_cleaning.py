"""Files that the next run removes, and files that it never removes."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from posttrain.dispatch import cleanup
from posttrain.dispatch.backend import Cause, JobSpec, JobState, JobStatus
from posttrain.dispatch.backends.local import LocalBackend
from posttrain.dispatch.cleanup import Cleaning, disk_bytes
from posttrain.dispatch.records import JobRecord, JobRecords, Owner, is_alive
from posttrain.runtime.locks import hold
from tests.waiting import wait_until

DAY_S = 86400.0
KEY = "0123456789" + "a" * 54


@dataclass
class Box:
    """A state folder with the records of its jobs, and a living run."""

    state: Path
    records: JobRecords
    owner: Owner

    def cleaner(self, *, owner=None, take_out=lambda _: None):
        return Cleaning(self.state, self.records, owner or self.owner, take_out=take_out)

    def record(self, name="train-1", *, key=KEY, attempt=1, owner="dead", target="local"):
        tree, log = self.state / "snapshots" / f"train-{key[:10]}-{attempt}", self.state / "logs" / f"{name}.log"
        return JobRecord(name, "train", key, attempt, target, name, tree, log, owner, time.time())

    def put(self, job, *, is_over=True, age_days=0.0, log=b"hello\n"):
        """All files that a job leaves."""
        self.records.add(job)
        if is_over:
            self.records.end(job.name, JobStatus(JobState.ENDED, 0, Cause.EXITED))
        folder = self.state / "local" / "jobs" / job.name
        for made in (job.folder, folder, job.log.parent):
            made.mkdir(parents=True, exist_ok=True)
        (job.folder / "file").write_text("x")
        (folder / "end.json").write_text("{}")
        job.log.write_bytes(log)
        for path in (folder, job.log):
            os.utime(path, (time.time() - age_days * DAY_S,) * 2)

    def left(self, folder):
        return sorted(path.name for path in (self.state / folder).iterdir())


@pytest.fixture
def box(tmp_path):
    state = tmp_path / ".posttrain"
    owner = Owner(state / "runs")
    yield Box(state, JobRecords(state / "jobs.db"), owner)
    owner.close()


@pytest.fixture
def backend(box):
    return LocalBackend(box.state / "local", num_gpus=1)


def test_the_tree_of_a_job_that_is_over_goes_when_its_run_is_dead_and_what_is_wanted_of_it_is_taken_out(box):
    box.put(box.record())
    box.put(box.record("living-run", key="b" * 64, owner=box.owner.name))
    box.put(box.record("not-over", key="c" * 64), is_over=False)
    taken = []
    box.cleaner(take_out=lambda tree: taken.append((tree / "file").read_text())).clean()
    assert (box.left("snapshots"), taken) == ([f"train-{'b' * 10}-1", f"train-{'c' * 10}-1"], ["x"])


def test_a_tree_that_no_record_knows_goes_unless_somebody_holds_its_key(box):
    tree = box.state / "snapshots" / f"train@a-{KEY[:10]}-1"
    tree.mkdir(parents=True)
    (box.state / "keys").mkdir()
    with hold(box.state / "keys" / KEY):  # its run is copying it
        box.cleaner().clean()
        assert box.left("snapshots") == [tree.name]
    box.cleaner().clean()  # the lock file of the dead is there, and nobody holds it
    assert (box.left("snapshots"), box.left("keys")) == ([], [])


def test_one_without_even_a_key_goes_after_an_hour_and_a_persons_own_folder_never(box, monkeypatch):
    for name in (f"train-{KEY[:10]}-1", "mine", "mine-2"):
        (box.state / "snapshots" / name).mkdir(parents=True)
    box.cleaner().clean()
    assert len(box.left("snapshots")) == 3
    monkeypatch.setattr(cleanup, "_PREPARING_S", 0.0)
    box.cleaner().clean()
    assert box.left("snapshots") == ["mine", "mine-2"]


def test_lock_files_of_the_dead_go_and_those_of_the_living_stay(box):
    for name in ("runs/dead", "keys/free"):
        (box.state / name).parent.mkdir(exist_ok=True)
        (box.state / name).touch()
    with hold(box.state / "keys" / "held"):
        box.cleaner().clean()
        assert (box.left("runs"), box.left("keys")) == ([box.owner.name], ["held"])
    assert is_alive(box.state / "runs", box.owner.name)


def test_logs_and_folders_of_jobs_that_are_over_go_by_age(box):
    box.put(box.record("old"), age_days=31)
    box.put(box.record("new", attempt=2), age_days=29)
    box.put(box.record("old-and-not-over", attempt=3), age_days=31, is_over=False)
    box.cleaner().clean()
    assert box.left("logs") == ["new.log", "old-and-not-over.log"]
    assert box.left("local/jobs") == ["new", "old-and-not-over"]


def test_a_job_folder_whose_supervisor_lives_stays_whatever_the_records_say(box):
    box.put(box.record("supervised"), age_days=365)
    with hold(box.state / "local" / "jobs" / "supervised" / "lock"):
        os.utime(box.state / "local" / "jobs" / "supervised", (0, 0))
        box.cleaner().clean()
        assert box.left("local/jobs") == ["supervised"]
    os.utime(box.state / "local" / "jobs" / "supervised", (0, 0))
    box.cleaner().clean()
    assert box.left("local/jobs") == []


def test_old_records_go_but_the_last_attempt_at_each_key(box):
    for number in range(1, 4):
        box.put(box.record(f"a-{number}", attempt=number))
    box.put(box.record("b-1", key="b" * 64))
    box.put(box.record("c-1", key="c" * 64), is_over=False)
    box.cleaner().clean()
    assert len(box.records.all()) == 5
    box.cleaner().clean(max_age_s=0.0)
    assert sorted(row.name for row in box.records.all()) == ["a-3", "b-1", "c-1"]


def test_two_runs_that_clean_at_once_remove_each_thing_once(box):
    for number in range(1, 41):
        box.put(box.record(f"job-{number}", attempt=number), age_days=40)
        (box.state / "runs" / f"dead-{number}").touch()
    other, taken = Owner(box.state / "runs"), []
    with ThreadPoolExecutor(4) as threads:
        cleaners = [
            box.cleaner(owner=one, take_out=lambda tree: taken.append((tree / "file").read_text()))
            for one in (box.owner, other) * 2
        ]
        for cleaned in [threads.submit(one.clean) for one in cleaners]:
            cleaned.result()
    assert len(taken) == 40
    assert [box.left(folder) for folder in ("logs", "local/jobs", "snapshots")] == [[], [], []]
    assert box.left("runs") == sorted([box.owner.name, other.name])
    other.close()


def test_a_job_that_is_over_and_that_nobody_waits_for_is_ended_and_its_tree_goes(box, backend):
    job, wanted = box.record("given-up"), box.record("wanted", key="b" * 64, owner=box.owner.name)
    for one in (job, wanted):
        box.records.add(one)
        one.folder.mkdir(parents=True)
        backend.submit(
            JobSpec(one.name, (sys.executable, "-c", "raise SystemExit(3)"), one.folder, box.state / f"{one.name}.log")
        )
        wait_until(lambda one=one: backend.status(one.name).is_over)
    elsewhere = box.record("elsewhere", key="c" * 64, target="slurm")
    box.records.add(elsewhere)
    ended = box.cleaner().end_abandoned(lambda target: backend if target == "local" else None)
    assert [one.name for one in ended] == ["given-up"]
    assert (
        box.records.latest(KEY).exit_code,
        box.records.latest("b" * 64).is_over,
        box.records.latest("c" * 64).is_over,
    ) == (
        3,
        False,
        False,
    )
    assert box.left("snapshots") == [wanted.folder.name]


def test_a_job_that_still_runs_or_that_a_run_is_taking_over_is_not_given_up(box, backend):
    job = box.record("running")
    box.records.add(job)
    job.folder.mkdir(parents=True)
    backend.submit(JobSpec(job.name, ("sleep", "600"), job.folder, box.state / "log"))
    wait_until(lambda: backend.status(job.name).state is JobState.RUNNING)
    assert box.cleaner().end_abandoned(lambda _: backend) == []
    backend.cancel(job.name)
    with hold(box.state / "keys" / KEY):
        assert box.cleaner().end_abandoned(lambda _: backend) == []
    assert [one.name for one in box.cleaner().end_abandoned(lambda _: backend)] == ["running"]


def test_a_file_with_two_names_takes_room_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_bytes(b"x" * 5000)
    (tmp_path / "two").hardlink_to(tmp_path / "a/one")
    (tmp_path / "three").write_bytes(b"x" * 5000)
    seen = set()
    assert [disk_bytes(tmp_path / name, seen) for name in ("a", "two", "three", "nowhere")] == [8192, 0, 8192, 0]
