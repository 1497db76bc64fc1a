"""Damaged records of jobs: a job is never forgotten or taken for another without a word."""

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


def test_damaged_records_are_read_as_they_were_or_refused(clean, tmp_path):
    expected, num_refused = everything(clean / "jobs.db"), 0
    for number in range(NUM_DAMAGES):
        path = fresh_copy(clean, tmp_path / "damaged") / "jobs.db"
        what = damage(path, number)
        num_refused += not check(lambda: everything(path), expected, name="jobs.db", what=what)  # noqa: B023
    assert num_refused > NUM_DAMAGES // 3


def test_any_byte_may_be_another(clean, tmp_path):
    expected = everything(clean / "jobs.db")
    size = (clean / "jobs.db").stat().st_size
    for number in range(200):
        path = fresh_copy(clean, tmp_path / "damaged") / "jobs.db"
        content = bytearray(path.read_bytes())
        content[number * size // 200 + number % 13] ^= 1 << number % 8
        path.write_bytes(content)
        check(lambda: everything(path), expected, name="jobs.db", what=f"byte {number * size // 200 + number % 13}")  # noqa: B023


@pytest.mark.parametrize(
    "update",
    [
        "UPDATE jobs SET cause = 'no cause' WHERE name = 'train-1'",
        "UPDATE jobs SET folder = NULL WHERE name = 'train-1'",
        "UPDATE jobs SET folder = x'ff' WHERE name = 'train-1'",
        "UPDATE jobs SET owner = CAST(x'ff' AS TEXT) WHERE name = 'train-1'",
        "UPDATE jobs SET ended_at = 'yesterday' WHERE name = 'train-1'",
        "UPDATE jobs SET attempt = 7 WHERE name = 'train-1'",
        "UPDATE jobs SET checksum = NULL WHERE name = 'train-1'",
        "UPDATE submitter SET name = 'me'",
        "DELETE FROM submitter",
        "DROP TABLE jobs",
    ],
)
def test_a_cell_that_was_changed_is_refused_with_what_to_do(clean, tmp_path, update):
    path = fresh_copy(clean, tmp_path / "damaged") / "jobs.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        if "NULL" in update:
            connection.execute("PRAGMA writable_schema = 1")
            connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'folder TEXT NOT NULL', 'folder TEXT')")
            connection.commit()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(update)
    with pytest.raises(ConfigurationError, match=r"jobs\.db is damaged .*End those that still run.*move jobs\.db away"):
        everything(path)


def test_a_row_that_is_damaged_is_not_sealed_by_the_next_write(clean, tmp_path):
    path = fresh_copy(clean, tmp_path / "damaged") / "jobs.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE jobs SET target = 'kubernetes' WHERE name = 'train-1'")
    for write in (
        lambda: JobRecords(path).set_owner("train-1", "me"),
        lambda: JobRecords(path).end("train-1", JobStatus(JobState.ENDED, 1)),
    ):
        with pytest.raises(ConfigurationError, match="the row of job 'train-1'"):
            write()


def test_the_command_says_it_without_a_traceback(clean, tmp_path, monkeypatch):
    state = fresh_copy(clean, tmp_path / ".posttrain")
    monkeypatch.chdir(tmp_path)
    for number in (3, 6, 8, 9):
        path = fresh_copy(clean, state) / "jobs.db"
        damage(path, number)
        end = posttrain("jobs", "list")
        assert (end.exit_code, "Traceback" in end.stderr, "jobs.db" in end.stderr) == (78, False, True), end.stderr
