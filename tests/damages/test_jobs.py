"""Damaged records of jobs are read or refused with what to do, never with a traceback."""

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.dispatch.backend import Cause, JobState, JobStatus
from posttrain.dispatch.records import JobRecord, JobRecords
from posttrain.runtime.exits import ConfigurationError
from tests.console import posttrain
from tests.damages.damaged import NUM_DAMAGES, check, damage, fresh_copy

FIRST = JobRecord("train-1", "train", "k1", 1, "slurm", None, Path("a"), Path("logs/a.log"), "run-1", 5.0)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    records = JobRecords(folder / "jobs.db")
    for number in range(40):
        records.add(
            replace(
                FIRST, name=f"train-{number}", key=f"k{number // 2}", attempt=number % 2 + 1, submitted_at=5.0 + number
            )
        )
        records.set_job_id(f"train-{number}", f"{number}:train")
        if number % 3:
            records.end(f"train-{number}", JobStatus(JobState.ENDED, number % 2, Cause.EXITED, "as it should"))
    return folder


def everything(path: Path):
    records = JobRecords(path)
    return records.submitter, records.all(), [records.latest(f"k{number}") for number in range(21)]


def test_damaged_records_are_read_or_refused(clean, tmp_path):
    num_refused = 0
    for number in range(NUM_DAMAGES):
        path = fresh_copy(clean, tmp_path / "damaged") / "jobs.db"
        what = damage(path, number)
        num_refused += not check(lambda: everything(path), None, name="jobs.db", what=what, is_part=lambda _: True)  # noqa: B023
    assert num_refused > NUM_DAMAGES // 3


@pytest.mark.parametrize(
    "update",
    [
        "UPDATE jobs SET cause = 'no cause' WHERE name = 'train-1'",
        "UPDATE jobs SET folder = x'ff' WHERE name = 'train-1'",
        "UPDATE jobs SET owner = CAST(x'ff' AS TEXT) WHERE name = 'train-1'",
        "DROP TABLE jobs",
    ],
)
def test_a_cell_that_was_changed_is_refused_with_what_to_do(clean, tmp_path, update):
    path = fresh_copy(clean, tmp_path / "damaged") / "jobs.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(update)
    with pytest.raises(ConfigurationError, match=r"jobs\.db is damaged .*End those that still run.*move jobs\.db away"):
        everything(path)


def test_the_command_says_it_without_a_traceback(clean, tmp_path, monkeypatch):
    state = fresh_copy(clean, tmp_path / ".posttrain")
    monkeypatch.chdir(tmp_path)
    for number in (3, 6, 8, 9):
        path = fresh_copy(clean, state) / "jobs.db"
        damage(path, number)
        end = posttrain("jobs", "list")
        assert (end.exit_code, "Traceback" in end.stderr, "jobs.db" in end.stderr) == (78, False, True), end.stderr
