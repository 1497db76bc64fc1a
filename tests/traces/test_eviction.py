"""The size limit: who goes first, and that the file gets smaller."""

import contextlib
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

from posttrain.traces.store import open_to_write
from posttrain.traces.writer import TraceWriter, make_room
from tests.rollout.lock_world import lock_task, say
from tests.traces.episodes import ids, opened, read, record, refuse, run_of, spoken


def fill(path: Path, stages: str, size: int = 600) -> None:
    for age, stage in enumerate(stages):
        record(
            path,
            stage,
            [replace(opened(), step=step) for step in range(size)],
            uid=f"{stage} {age}",
            started_at=float(age),
        )


def counts(path: Path, stages: str) -> list[int]:
    return [len(ids(path, stage=stage)) for stage in stages]


def test_the_oldest_run_goes_first_and_the_file_shrinks(tmp_path):
    """Three runs of a third, and a limit of 0.8, so 0.72: two stay (0.67), not two and a half."""
    path = tmp_path / "traces.db"
    fill(path, "abc")
    size = os.path.getsize(path)
    with contextlib.closing(open_to_write(path)) as connection:
        assert make_room(connection, max_bytes=int(0.8 * size)) == 600
        assert make_room(connection, max_bytes=int(0.8 * size)) == 0
    assert counts(path, "abc") == [0, 600, 600]
    assert os.path.getsize(path) <= 0.8 * size
    assert sqlite3.connect(path).execute("SELECT stage FROM runs").fetchall() == [("b",), ("c",)]
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_age_is_when_a_run_started_not_when_it_came(tmp_path):
    path = tmp_path / "traces.db"
    for stage, started_at in (("new", 2.0), ("imported later", 1.0)):
        record(path, stage, [opened()] * 1000, started_at=started_at)
    with contextlib.closing(open_to_write(path)) as connection:
        make_room(connection, max_bytes=int(0.8 * os.path.getsize(path)))
    assert (len(ids(path, stage="new")), len(ids(path, stage="imported later"))) == (1000, 0)


def test_a_run_that_fills_the_store_alone_loses_its_oldest_steps(tmp_path):
    path = tmp_path / "traces.db"
    fill(path, "ab", size=300)
    size = os.path.getsize(path)
    record(
        path, "train_policy", [replace(opened(), step=step) for step in range(1, 1501)], max_bytes=size, started_at=9.0
    )
    assert counts(path, "ab") == [0, 0]
    left = ids(path, stage="train_policy")
    assert 150 < len(left) < 600
    assert read(path, left[0]).traced.step == 1500
    assert [read(path, episode).traced.step for episode in (left[-1], left[0])] == [1501 - len(left), 1500]
    assert os.path.getsize(path) <= 1.1 * size


def test_a_run_whose_row_another_process_deleted_goes_on(tmp_path):
    """The other made room; run and task are put back with the next episodes."""
    path = tmp_path / "traces.db"
    writer = TraceWriter(path, run_of("train_policy"), max_bytes=10**9, warn=refuse)
    writer.record([opened()] * 10)
    writer.flush()
    with contextlib.closing(open_to_write(path)) as connection:
        assert make_room(connection, max_bytes=0) == 10
    writer.record([opened()] * 3)
    writer.close()
    assert ids(path, stage="train_policy") == [13, 12, 11]
    assert ids(path, tool="try_code", task_id="t") == [13, 12, 11]
    assert read(path, 11).traced == opened()


def test_what_no_episode_needs_goes_too(tmp_path):
    path = tmp_path / "traces.db"
    record(path, "a", [spoken(say("done"), task=lock_task("of a")), opened()])
    with contextlib.closing(open_to_write(path)) as connection:
        assert make_room(connection, max_bytes=0) == 2
        for table in ("runs", "tasks", "episodes", "bodies", "calls"):
            assert connection.execute(f"SELECT * FROM {table}").fetchall() == []
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
