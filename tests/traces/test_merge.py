"""The store of another machine comes in once, wherever it lay and however its writer ended."""

import os
import shutil
import sqlite3
from dataclasses import replace

import pytest

from posttrain.runtime.exits import DataError
from posttrain.traces.merge import import_store
from posttrain.traces.writer import TraceWriter
from tests.rollout.lock_world import lock_task, say
from tests.traces.episodes import TRY_123, ids, opened, read, record, refuse, run_of, spoken, written


@pytest.fixture
def stores(tmp_path):
    mine, other = tmp_path / "mine" / "traces.db", tmp_path / "other.db"
    record(mine, "train_policy", [opened()] * 3)
    episodes = [
        written((TRY_123, True), ("done", True))[0],
        spoken(say("done"), task=lock_task("only there")),
        opened(),
    ]
    record(other, "evaluate@sft", [replace(episode, is_success=True) for episode in episodes], uid="there")
    return mine, other, episodes


def test_another_stores_episodes_come_in_whole_under_new_numbers(stores):
    mine, other, episodes = stores
    assert import_store(mine, other) == 3
    assert ids(mine) == [6, 5, 4, 3, 2, 1]
    assert [read(mine, number).traced for number in (4, 5, 6)] == [
        replace(episode, is_success=True) for episode in episodes
    ]
    assert read(mine, 4).run == run_of("evaluate@sft", "there")
    assert ids(mine, tool="try_code", stage="evaluate") == [6, 4]
    assert sqlite3.connect(mine).execute("SELECT count(*) FROM tasks").fetchone() == (2,)


def test_a_second_import_adds_nothing_and_a_later_one_what_is_new(stores):
    mine, other, _ = stores
    import_store(mine, other)
    assert import_store(mine, other) == 0
    record(other, "evaluate@policy", [opened()] * 2)
    assert import_store(mine, other) == 2
    assert len(ids(mine)) == 8
    assert import_store(mine, mine) == 0


def test_the_last_episodes_of_a_killed_writer_come_too(stores, tmp_path):
    """They are in the write-ahead log; the two files are taken while the writer has them open."""
    mine, _, _ = stores
    writer = TraceWriter(tmp_path / "job.db", run_of("train_policy", "killed"), max_bytes=10**9, warn=refuse)
    writer.record([opened()] * 5)
    writer.flush()
    (tmp_path / "shipped").mkdir()
    for name in ("job.db", "job.db-wal"):
        shutil.copyfile(tmp_path / name, tmp_path / "shipped" / name)
    writer.close()
    assert import_store(mine, tmp_path / "shipped" / "job.db") == 5
    assert sorted(path.name for path in (tmp_path / "shipped").iterdir()) == ["job.db", "job.db-wal"], (
        "left as they were"
    )
    assert sorted(path.name for path in mine.parent.iterdir()) == ["traces.db"]


def test_what_is_no_whole_store_is_refused_and_nothing_comes_in(stores, tmp_path):
    mine, other, _ = stores
    with pytest.raises(DataError, match=r"absent\.db is not a file"):
        import_store(mine, tmp_path / "absent.db")
    (tmp_path / "notes.txt").write_text("x" * 500)
    with pytest.raises(DataError, match=r"notes\.txt is damaged, cut off or no trace store"):
        import_store(mine, tmp_path / "notes.txt")
    record(other, "evaluate@sft", [opened()] * 500, uid="large")
    os.truncate(other, os.path.getsize(other) // 2)
    with pytest.raises(DataError, match=r"other\.db is damaged"):
        import_store(mine, other)
    assert ids(mine) == [3, 2, 1]
