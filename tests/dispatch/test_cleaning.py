"""What goes with the next run, and what never does."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from posttrain.dispatch import cleanup
from posttrain.dispatch.backend import Cause, JobSpec, JobState, JobStatus
from posttrain.dispatch.backends.local import LocalBackend
from posttrain.dispatch.cleanup import Cleaning, Limits, disk_bytes, limits_of
from posttrain.dispatch.records import JobRecord, JobRecords
from posttrain.dispatch.submitter_lock import Owner, is_alive
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.locks import hold
from tests.waiting import wait_until

DAY_S = 86400.0
KEY = "0123456789" + "a" * 54


@pytest.fixture
def state(tmp_path):
    return tmp_path / ".posttrain"


@pytest.fixture
def records(state):
    return JobRecords(state / "jobs.db")


@pytest.fixture
def owner(state):
    owner = Owner(state / "runs")
    yield owner
    owner.close()


@pytest.fixture
def pool(state):
    return LocalBackend(state / "local", num_gpus=1)


def cleaner(state, records, owner, *, max_bytes=10**9, in_days=0.0, take_out=lambda _: None):
    return Cleaning(
        state,
        records,
        Limits(30 * DAY_S, max_bytes),
        owner,
        take_out=take_out,
        now=lambda: time.time() + in_days * DAY_S,
    )


def record(state, name="train-1", *, key=KEY, attempt=1, owner="dead", target="local"):
    tree = state / "snapshots" / f"train-{key[:10]}-{attempt}"
    return JobRecord(
        name, "train", key, attempt, target, name, tree, state / "logs" / f"{name}.log", owner, time.time()
    )


def put(state, records, job, *, is_over=True, age_days=0.0, log=b"hello\n"):
    """All that a job leaves."""
    records.add(job)
    if is_over:
        records.end(job.name, JobStatus(JobState.ENDED, 0, Cause.EXITED))
    folder = state / "local" / "jobs" / job.name
    for made in (job.folder, folder, job.log.parent):
        made.mkdir(parents=True, exist_ok=True)
    (job.folder / "file").write_text("x")
    (folder / "end.json").write_text("{}")
    job.log.write_bytes(log)
    for path in (folder, job.log):
        os.utime(path, (time.time() - age_days * DAY_S,) * 2)


def left(state, folder):
    return sorted(path.name for path in (state / folder).iterdir())


def test_the_tree_of_a_job_that_is_over_goes_when_its_run_is_dead_and_what_is_wanted_of_it_is_taken_out(
    state, records, owner
):
    put(state, records, record(state))
    put(state, records, record(state, "living-run", key="b" * 64, owner=owner.name))
    put(state, records, record(state, "not-over", key="c" * 64), is_over=False)
    taken = []
    cleaner(state, records, owner, take_out=lambda tree: taken.append((tree / "file").read_text())).clean()
    assert (left(state, "snapshots"), taken) == ([f"train-{'b' * 10}-1", f"train-{'c' * 10}-1"], ["x"])


def test_a_tree_that_no_record_knows_goes_unless_somebody_holds_its_key(state, records, owner):
    tree = state / "snapshots" / f"train@a-{KEY[:10]}-1"
    tree.mkdir(parents=True)
    (state / "keys").mkdir()
    with hold(state / "keys" / KEY):  # its run is copying it
        assert cleaner(state, records, owner, in_days=1).clean() == []
    cleaner(state, records, owner).clean()  # the lock file of the dead is there, and nobody holds it
    assert (left(state, "snapshots"), left(state, "keys")) == ([], [])


def test_one_without_even_a_key_goes_after_an_hour_and_a_persons_own_folder_never(state, records, owner):
    for name in (f"train-{KEY[:10]}-1", "mine", "mine-2"):
        (state / "snapshots" / name).mkdir(parents=True)
    cleaner(state, records, owner).clean()
    assert len(left(state, "snapshots")) == 3
    cleaner(state, records, owner, in_days=365).clean()
    assert left(state, "snapshots") == ["mine", "mine-2"]


def test_lock_files_of_the_dead_go_and_those_of_the_living_stay(state, records, owner):
    for name in ("runs/dead", "keys/free"):
        (state / name).parent.mkdir(exist_ok=True)
        (state / name).touch()
    with hold(state / "keys" / "held"):
        cleaner(state, records, owner).clean()
        assert (left(state, "runs"), left(state, "keys")) == ([owner.name], ["held"])
    assert is_alive(state / "runs", owner.name)


def test_logs_and_folders_of_jobs_that_are_over_go_by_age(state, records, owner):
    put(state, records, record(state, "old"), age_days=31)
    put(state, records, record(state, "new", attempt=2), age_days=29)
    put(state, records, record(state, "old-and-not-over", attempt=3), age_days=31, is_over=False)
    cleaner(state, records, owner).clean()
    assert left(state, "logs") == ["new.log", "old-and-not-over.log"]
    assert left(state, "local/jobs") == ["new", "old-and-not-over"]


def test_logs_go_by_size_the_oldest_first_and_never_a_living_jobs(state, records, owner):
    for number, is_over in enumerate((False, True, True, True), 1):
        put(
            state,
            records,
            record(state, f"job-{number}", attempt=number),
            is_over=is_over,
            age_days=10 - number,
            log=b"x" * 1000,
        )
    cleaner(state, records, owner, max_bytes=2500).clean()
    assert left(state, "logs") == ["job-1.log", "job-4.log"]


def test_a_job_folder_whose_supervisor_lives_stays_whatever_the_records_say(state, records, owner):
    put(state, records, record(state, "supervised"), age_days=365)
    with hold(state / "local" / "jobs" / "supervised" / "lock"):
        os.utime(state / "local" / "jobs" / "supervised", (0, 0))
        cleaner(state, records, owner).clean()
        assert left(state, "local/jobs") == ["supervised"]
    os.utime(state / "local" / "jobs" / "supervised", (0, 0))
    cleaner(state, records, owner).clean()
    assert left(state, "local/jobs") == []


def test_only_so_many_job_folders_are_kept(state, records, owner, monkeypatch):
    monkeypatch.setattr(cleanup, "MAX_JOB_FOLDERS", 2)
    for number in range(1, 5):
        put(state, records, record(state, f"job-{number}", attempt=number), age_days=10 - number)
    cleaner(state, records, owner).clean()
    assert left(state, "local/jobs") == ["job-3", "job-4"]


def test_old_records_go_but_the_last_attempt_at_each_key(state, records, owner):
    for number in range(1, 4):
        put(state, records, record(state, f"a-{number}", attempt=number))
    put(state, records, record(state, "b-1", key="b" * 64))
    put(state, records, record(state, "c-1", key="c" * 64), is_over=False)
    cleaner(state, records, owner, in_days=29).clean()
    assert len(records.all()) == 5
    cleaner(state, records, owner, in_days=31).clean()
    assert sorted(row.name for row in records.all()) == ["a-3", "b-1", "c-1"]


def test_one_run_takes_away_a_part_and_the_runs_after_it_the_rest(state, records, owner):
    for number in range(1, 8):
        put(state, records, record(state, f"job-{number}", attempt=number), age_days=40)
    for expected in (4, 1, 0):
        cleaner(state, records, owner).clean(at_most=3)
        assert (len(left(state, "logs")), len(left(state, "local/jobs")), len(left(state, "snapshots"))) == (
            expected,
        ) * 3


def test_a_run_in_a_hurry_takes_away_the_trees_and_leaves_what_is_small_to_the_next(state, records, owner):
    for number in range(1, 4):
        put(state, records, record(state, f"job-{number}", attempt=number), age_days=40)
    cleaner(state, records, owner).clean(within_s=-1)
    assert [len(left(state, folder)) for folder in ("snapshots", "logs", "local/jobs")] == [0, 3, 3]


def test_two_runs_that_clean_at_once_remove_each_thing_once(state, records, owner):
    for number in range(1, 41):
        put(state, records, record(state, f"job-{number}", attempt=number), age_days=40)
        (state / "runs" / f"dead-{number}").touch()
    other, taken = Owner(state / "runs"), []
    with ThreadPoolExecutor(4) as threads:
        cleaners = [
            cleaner(state, records, one, take_out=lambda tree: taken.append((tree / "file").read_text()))
            for one in (owner, other) * 2
        ]
        for cleaned in [threads.submit(one.clean) for one in cleaners]:
            cleaned.result()
    assert len(taken) == 40
    assert [left(state, folder) for folder in ("logs", "local/jobs", "snapshots")] == [[], [], []]
    assert left(state, "runs") == sorted([owner.name, other.name])
    other.close()


def test_a_job_that_is_over_and_that_nobody_waits_for_is_ended_and_its_tree_goes(state, records, owner, pool):
    job, wanted = record(state, "given-up"), record(state, "wanted", key="b" * 64, owner=owner.name)
    for one in (job, wanted):
        records.add(one)
        one.folder.mkdir(parents=True)
        pool.submit(
            JobSpec(one.name, (sys.executable, "-c", "raise SystemExit(3)"), one.folder, state / f"{one.name}.log")
        )
        wait_until(lambda one=one: pool.status(one.name).is_over)
    elsewhere = record(state, "elsewhere", key="c" * 64, target="slurm")
    records.add(elsewhere)
    ended = cleaner(state, records, owner).end_abandoned(lambda target: pool if target == "local" else None)
    assert [one.name for one in ended] == ["given-up"]
    assert (records.latest(KEY).exit_code, records.latest("b" * 64).is_over, records.latest("c" * 64).is_over) == (
        3,
        False,
        False,
    )
    assert left(state, "snapshots") == [wanted.folder.name]


def test_a_job_that_still_runs_or_that_a_run_is_taking_over_is_not_given_up(state, records, owner, pool):
    job = record(state, "running")
    records.add(job)
    job.folder.mkdir(parents=True)
    pool.submit(JobSpec(job.name, ("sleep", "600"), job.folder, state / "log"))
    wait_until(lambda: pool.status(job.name).state is JobState.RUNNING)
    assert cleaner(state, records, owner).end_abandoned(lambda _: pool) == []
    pool.cancel(job.name)
    with hold(state / "keys" / KEY):
        assert cleaner(state, records, owner).end_abandoned(lambda _: pool) == []
    assert [one.name for one in cleaner(state, records, owner).end_abandoned(lambda _: pool)] == ["running"]


def test_what_would_go_and_what_there_is_can_be_asked_without_removing_anything(state, records, owner):
    put(state, records, record(state), age_days=40, log=b"x" * 5000)
    found = {leftover.kind: leftover.num_bytes() for leftover in cleaner(state, records, owner).leftovers()}
    assert (sorted(found), found["log"]) == (["job", "log", "tree"], 8192)
    assert left(state, "logs") == ["train-1.log"]


def test_a_file_with_two_names_takes_room_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_bytes(b"x" * 5000)
    (tmp_path / "two").hardlink_to(tmp_path / "a/one")
    (tmp_path / "three").write_bytes(b"x" * 5000)
    seen = set()
    assert [disk_bytes(tmp_path / name, seen) for name in ("a", "two", "three", "nowhere")] == [8192, 0, 8192, 0]
    assert [disk_bytes(tmp_path / name) for name in ("a", "three")] == [0, 8192], (
        "of a leftover: removing it frees no more"
    )


@pytest.mark.parametrize("name", ["POSTTRAIN_LOGS_MAX_AGE_DAYS", "POSTTRAIN_LOGS_MAX_GB"])
@pytest.mark.parametrize("text", ["0", "-1", "a month", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(name, text):
    with pytest.raises(ConfigurationError, match=f"{name} is '{text}'"):
        limits_of({name: text})


def test_limits_are_days_and_gigabytes():
    assert limits_of({}) == limits_of({"POSTTRAIN_LOGS_MAX_GB": ""}) == Limits(30 * DAY_S, 10**9)
    assert limits_of({"POSTTRAIN_LOGS_MAX_AGE_DAYS": "0.5", "POSTTRAIN_LOGS_MAX_GB": "2.5"}) == Limits(
        43200.0, 2_500_000_000
    )
