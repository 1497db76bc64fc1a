"""A file gone through in batches is judged and written as it is at once, and only a batch of it is
held."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain.data import schemas
from posttrain.data.files import ParquetBatches, read_parquet, rows_at, write_batches, write_parquet
from posttrain.data.resampling.coreset import Selected
from posttrain.data.schemas import (
    TASKS_SCHEMA,
    TRAJECTORIES_SCHEMA,
    read_tasks,
    read_trajectories,
    trajectories_table,
    write_tasks,
    write_trajectories,
)
from posttrain.data.validation.page import render_page
from posttrain.data.validation.validate import kept, quarantined, summary, validate
from posttrain.runtime.batch_workers import map_batches
from posttrain.runtime.exits import ConfigurationError

DAMAGED = 10  # of the rows below: some answered twice, some met before


@pytest.fixture(scope="module")
def table(toy_rows) -> pa.Table:
    """Some of the toy world's demonstrations, and with them copies, 50 rows away, and calls that
    are answered twice."""
    rows = list(toy_rows[:90])
    for index in range(DAMAGED):
        rows.insert(50 + 3 * index, rows[index])
    columns = trajectories_table(rows).to_pylist()
    for index in range(DAMAGED):
        messages = columns[4 * index]["messages"]
        messages[1:1] = [message for message in messages if message["role"] == "tool"][:1]
    return pa.Table.from_pylist(columns, schema=TRAJECTORIES_SCHEMA)


@pytest.fixture(scope="module")
def tasks(toy_tasks, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "tasks.parquet"
    leaking = replace(toy_tasks["test"][0], messages=toy_tasks["sft"][5].messages)
    write_tasks(path, [leaking, *(task for tasks in toy_tasks.values() for task in tasks)])
    return path


@pytest.fixture
def path(table, tmp_path) -> Path:
    write_parquet(tmp_path / "rows.parquet", table)
    return tmp_path / "rows.parquet"


def test_a_table_of_rows_ends_with_the_row_that_takes_it_over_a_size(toy_rows, tmp_path, monkeypatch):
    """No column of one table could hold the texts of 2,000 rows of a megabyte each."""
    played = toy_rows[0].trajectory
    long = replace(played.messages[0], content="x" * 400)
    rows = [replace(toy_rows[0], trajectory=replace(played, messages=(long, *played.messages[1:])))] * 7
    monkeypatch.setattr(schemas, "_CHARS_AT_ONCE", 3 * len(schemas._row_columns(rows[0])["tools"]) + 3 * 400)
    sizes = [table.num_rows for table in schemas._tables(map(schemas._row_columns, rows), TRAJECTORIES_SCHEMA)]
    assert max(sizes) <= 3
    assert sum(sizes) == 7
    write_trajectories(tmp_path / "rows.parquet", rows)
    assert read_trajectories(tmp_path / "rows.parquet") == rows


def test_a_step_of_reading_is_never_larger_than_a_row_group(table, tmp_path):
    """A group ends with its size: 512 rows of 16 MB are more than an array of texts can hold."""
    with pq.ParquetWriter(tmp_path / "rows.parquet", TRAJECTORIES_SCHEMA) as writer:
        for start in range(0, 12, 4):
            writer.write_table(table.slice(start, 4))
    found = list(ParquetBatches(tmp_path / "rows.parquet", TRAJECTORIES_SCHEMA, max_bytes=1))
    assert [batch.num_rows for batch in found] == [4, 4, 4]
    assert pa.concat_tables(found).equals(table.slice(0, 12))


def batches_of(path: Path, num_rows: int) -> ParquetBatches:
    return ParquetBatches(path, TRAJECTORIES_SCHEMA, max_rows=num_rows)


@pytest.mark.parametrize("num_rows", [1, 7, 99, 100, 1000])
def test_batches_are_the_file_in_order_and_each_loop_reads_it_anew(path, table, num_rows):
    batches = batches_of(path, num_rows)
    assert [batch.num_rows for batch in batches] == [
        min(num_rows, len(table) - start) for start in range(0, len(table), num_rows)
    ]
    assert pa.concat_tables(batches).equals(table)


def test_a_batch_ends_with_the_rows_that_take_it_over_its_bytes(path, table):
    many = pa.concat_tables([table] * 12)
    write_parquet(path, many)
    step_bytes = many.slice(0, 512).nbytes
    sizes = [batch.num_rows for batch in ParquetBatches(path, TRAJECTORIES_SCHEMA, max_bytes=step_bytes // 2)]
    assert sizes == [512, 512, 176]


def test_some_columns_of_some_rows(path, table):
    batches = ParquetBatches(path, TRAJECTORIES_SCHEMA, ("seed", "task_id"), max_rows=7)
    found = pa.concat_tables(rows_at(batches, np.array([0, 6, 7, 50])))
    assert found.equals(table.select([*found.column_names]).take([0, 6, 7, 50]))
    assert set(found.column_names) == {"seed", "task_id"}


@pytest.mark.parametrize("num_rows", [7, 64, 100])
def test_written_in_batches_a_file_has_the_bytes_of_the_table_at_once(path, table, num_rows):
    written = path.with_name("again.parquet")
    write_batches(written, batches_of(path, num_rows), TRAJECTORIES_SCHEMA)
    assert written.read_bytes() == path.read_bytes()


def test_processes_beside_each_other_come_to_the_same_verdict(path, table, tasks, monkeypatch):
    held_out, batches = read_parquet(tasks, TASKS_SCHEMA), batches_of(path, 20)
    alone = validate(batches, [held_out], max_tokens=200, source=path)
    monkeypatch.setenv("POSTTRAIN_DATA_WORKERS", "2")
    beside = validate(batches, [held_out], max_tokens=200, source=path)
    assert (beside.reasons, beside.checked, summary(beside)) == (alone.reasons, alone.checked, summary(alone))


@pytest.mark.parametrize(
    ("asked", "told"), [("none", "a number of processes, or ray"), ("ray", "names no cluster|ray]")]
)
def test_workers_that_are_nowhere_are_refused(monkeypatch, asked, told):
    monkeypatch.setenv("POSTTRAIN_DATA_WORKERS", asked)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigurationError, match=told):
        list(map_batches(max, 0, [1]))


@pytest.mark.parametrize("num_rows", [20, 64])
def test_a_verdict_does_not_know_of_batches(path, table, tasks, num_rows):
    held_out = read_parquet(tasks, TASKS_SCHEMA)
    whole = validate([table], [held_out], max_tokens=200, source=path)
    batches = batches_of(path, num_rows)
    found = validate(batches, ParquetBatches(tasks, TASKS_SCHEMA, max_rows=num_rows), max_tokens=200, source=path)
    assert found.reasons == whole.reasons
    assert {"no_duplicate", "unique_id", "roles_alternate", "no_held_out_text"} <= set(found.counts())
    assert found.counts()["no_duplicate"] >= DAMAGED - 3  # a copy of a row that was damaged is no copy
    assert found.checked == whole.checked
    assert summary(found) == summary(whole)
    assert list(quarantined(found, batches)) == list(quarantined(whole, [table]))
    pages = [
        render_page(verdict, rows, max_quarantine_frac=1.0) for verdict, rows in ((found, batches), (whole, [table]))
    ]
    assert pages[0] == pages[1]
    assert pa.concat_tables(kept(found, batches)).equals(table.filter(pa.array(whole.is_kept)))


def test_of_the_batches_that_were_judged_none_is_held(table):
    alive: list[weakref.ref[pa.Table]] = []

    def batches() -> Iterator[pa.Table]:
        for start in range(0, len(table), 10):
            assert sum(batch() is not None for batch in alive) <= 1  # the one judged last
            batch = pa.concat_tables([table.slice(start, 10)]).combine_chunks()
            alive.append(weakref.ref(batch))
            yield batch
            del batch

    assert len(validate(batches(), [], max_tokens=200, source=Path("d.parquet")).is_kept) == len(table)


def test_what_is_selected_is_read_again_by_position(path, table):
    some = Selected(path, np.array([3, 8, 60, 99])).at(np.array([1, 3]))
    assert pa.concat_tables(some.tables()).equals(table.take([8, 99]))
    rows = read_trajectories(path)
    assert some.rows() == [rows[8], rows[99]]
    assert list(some) == [rows[8].trajectory.messages, rows[99].trajectory.messages]


def test_tasks_are_found_by_split_and_id(tasks, toy_tasks):
    wanted = {toy_tasks["sft"][2].task_id, toy_tasks["test"][0].task_id}
    assert read_tasks(tasks, "sft", ids=wanted) == [toy_tasks["sft"][2]]
    assert read_tasks(tasks, "sft", ids=()) == []
    assert read_tasks(tasks, "sft") == list(toy_tasks["sft"])
