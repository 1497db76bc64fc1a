"""Damaged reports, metrics and tables: what a person is shown is what a stage wrote, and what a
stage reads ends it with a meaning."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from posttrain.data.files import read_parquet
from posttrain.data.schemas import (
    TASKS_SCHEMA,
    read_tasks,
    read_trajectories,
    trajectory_row,
    write_tasks,
    write_trajectories,
)
from posttrain.report.committed import refuse_unrecorded
from posttrain.report.run_reader import (
    Evaluation,
    SftLine,
    TaskRecord,
    read_lines,
    read_object,
    read_policy_lines,
)
from posttrain.runtime.exits import DataError
from posttrain.tracking.metrics_log import MetricsLog, read_metrics
from tests.damages.damaged import NUM_DAMAGES, check, damage, fresh_copy
from tests.rollout.lock_world import LockDomain, lock_task
from tests.traces.episodes import opened


@pytest.fixture(scope="module")
def clean(tmp_path_factory, repository):
    """Reports of the committed run, recorded in a dvc.lock."""
    folder = tmp_path_factory.mktemp("reports")
    names = [
        "evaluate/policy.json",
        "evaluate/sft.json",
        "evaluate/sft.tasks.jsonl",
        "train_sft/metrics.jsonl",
        "train_policy/metrics.jsonl",
    ]
    outs = []
    for name in names:
        file = folder / "reports" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(
            b"".join(
                (repository / "reports" / name)
                .read_bytes()
                .splitlines(keepends=True)[: 80 if name.endswith("jsonl") else None]
            )
        )
        outs.append(
            {
                "path": f"reports/{name}",
                "hash": "md5",
                "md5": hashlib.md5(file.read_bytes()).hexdigest(),
                "size": file.stat().st_size,
            }
        )
    (folder / "dvc.lock").write_text(
        yaml.safe_dump({"schema": "2.0", "stages": {"evaluate@sft": {"cmd": "x", "outs": outs}}})
    )
    return folder


READERS = {
    "evaluate/policy.json": (lambda path: read_object(path, Evaluation), "evaluate/sft.json"),
    "evaluate/sft.tasks.jsonl": (lambda path: read_lines(path, TaskRecord), "train_sft/metrics.jsonl"),
    "train_sft/metrics.jsonl": (lambda path: read_lines(path, SftLine), "train_policy/metrics.jsonl"),
    "train_policy/metrics.jsonl": (read_policy_lines, "train_sft/metrics.jsonl"),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_report_is_read_as_it_was_or_refused(clean, tmp_path, name):
    read, other = READERS[name]
    expected, num_read = read(clean / "reports" / name), 0
    for number in range(NUM_DAMAGES):
        folder = fresh_copy(clean, tmp_path / "damaged")
        path = folder / "reports" / name
        what = damage(path, number, sibling=folder / "reports" / other)
        check(lambda: read(path), expected, name=path.name, what=what, is_part=lambda _: True)  # noqa: B023

        def read_recorded():
            refuse_unrecorded([path], folder / "dvc.lock")  # noqa: B023
            return read(path)  # noqa: B023

        num_read += check(read_recorded, expected, name=path.name, what=what)
    assert num_read <= 2  # a block that was put over itself


def test_a_damaged_lock_is_refused_and_an_absent_one_says_nothing(clean, tmp_path):
    for number in range(NUM_DAMAGES):
        folder = fresh_copy(clean, tmp_path / "damaged")
        what = damage(folder / "dvc.lock", number)
        files = [folder / "reports" / name for name in READERS]
        check(lambda: refuse_unrecorded(files, folder / "dvc.lock"), None, name="dvc.lock", what=what)  # noqa: B023
    refuse_unrecorded(files, folder / "no.lock")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    tasks = [lock_task(f"t{index}") for index in range(40)]
    write_tasks(folder / "tasks.parquet", tasks)
    row = trajectory_row(opened().trajectory, opened().task, LockDomain().tools)
    write_trajectories(folder / "demos.parquet", [row] * 30)
    with MetricsLog(folder / "metrics.jsonl") as log:
        for step in range(40):
            log.write(step, {"loss": step / 7})
    return folder


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("tasks.parquet", read_tasks),
        ("demos.parquet", read_trajectories),
        ("metrics.jsonl", read_metrics),
    ],
)
def test_a_damaged_input_ends_a_stage_with_a_meaning(tables, tmp_path, name, read):
    """A file whose content is another and reads well is known by its hash, which DVC asks before a
    stage runs; no reader of rows can tell."""
    expected = read(tables / name)
    for number in range(NUM_DAMAGES):
        folder = fresh_copy(tables, tmp_path / "damaged")
        what = damage(
            folder / name, number, sibling=tables / ("demos.parquet" if name == "tasks.parquet" else "tasks.parquet")
        )
        check(lambda: read(folder / name), expected, name=name, what=what, is_part=lambda _: True)  # noqa: B023


def test_columns_of_other_types_are_bad_data(tmp_path):
    table = pa.table({name: pa.array([{"x": 1}]) for name in TASKS_SCHEMA.names})
    pq.write_table(table, tmp_path / "tasks.parquet")
    with pytest.raises(DataError, match=r"tasks\.parquet has \d+ bytes but is no whole Parquet file"):
        read_parquet(tmp_path / "tasks.parquet", TASKS_SCHEMA)
    good = pa.Table.from_pylist([dict.fromkeys(TASKS_SCHEMA.names)], schema=TASKS_SCHEMA)
    pq.write_table(good, tmp_path / "tasks.parquet")
    with pytest.raises(DataError, match=r"tasks\.parquet has a row that cannot be read"):
        read_tasks(tmp_path / "tasks.parquet")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_none_is_not_drawn(tmp_path, constant):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + f'\n{{"step": 2, "loss": {constant}}}\n')
    with pytest.raises(DataError, match=f"{constant} is no JSON"):
        read_lines(tmp_path / "metrics.jsonl", SftLine)
