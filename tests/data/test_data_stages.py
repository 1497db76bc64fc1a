"""The two stages as programs, in a folder of their own: what they write, and how they end on files
that are no demonstrations."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.arms import apply_overrides
from posttrain.data.files import read_jsonl, read_parquet, write_parquet
from posttrain.data.schemas import TRAJECTORIES_SCHEMA, trajectories_table, write_tasks, write_trajectories
from tests.forked import preload, python

pytestmark = pytest.mark.xdist_group("validate")


@pytest.fixture(autouse=True, scope="module")
def expectations():
    preload("great_expectations")


@pytest.fixture
def rows(toy_rows):
    return toy_rows[:200]


@pytest.fixture
def checkout(repository, toy, toy_tasks, rows, tmp_path) -> Path:
    """The graph, the knobs, and the toy world's raw data; no code."""
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copyfile(repository / name, tmp_path / name)
    write_tasks(tmp_path / "data/raw/tasks.parquet", [task for tasks in toy_tasks.values() for task in tasks])
    write_trajectories(tmp_path / "data/raw/demonstrations.parquet", rows)
    return tmp_path


@pytest.fixture
def validate(repository, checkout):
    def run() -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(repository),
            "POSTTRAIN_THREADS": "1",
            "HOME": str(checkout / "home"),
        }
        return python("stages.validate_data", cwd=checkout, env=environment)

    return run


def test_good_rows_go_on_bad_ones_are_kept_apart_and_nothing_is_lost(checkout, validate, rows):
    ended = validate()
    assert ended.returncode == 0, ended.stderr
    kept = read_parquet(checkout / "data/validated/demonstrations.parquet", TRAJECTORIES_SCHEMA)[
        "trajectory_id"
    ].to_pylist()
    quarantine = read_jsonl(checkout / "data/validated/quarantine.jsonl")
    assert len(kept) + len(quarantine) == len(rows)
    assert {*kept, *(bad["row"]["trajectory_id"] for bad in quarantine)} == {row.trajectory_id for row in rows}
    counts = json.loads((checkout / "reports/validate_data/summary.json").read_text(encoding="utf-8"))
    assert counts["num_quarantined"] == len(quarantine) > 0
    outputs = sorted(
        path for folder in ("data", "reports") for path in (checkout / folder).rglob("*") if path.is_file()
    )
    assert sorted(str(path.relative_to(checkout)) for path in outputs) == [
        "data/raw/demonstrations.parquet",
        "data/raw/tasks.parquet",
        "data/validated/demonstrations.parquet",
        "data/validated/quarantine.jsonl",
        "reports/validate_data/data_docs.html",
        "reports/validate_data/index.html",
        "reports/validate_data/summary.json",
    ]
    assert {path.name for path in checkout.iterdir()} == {
        ".posttrain",
        "data",
        "dvc.yaml",
        "params.yaml",
        "reports",
    }  # nothing of Great Expectations'
    before = {path: path.read_bytes() for path in outputs}
    assert validate().returncode == 0
    assert {path: path.read_bytes() for path in outputs} == before


def test_an_empty_file_and_a_file_without_rows_are_bad_data(checkout, validate):
    path = checkout / "data/raw/demonstrations.parquet"
    path.write_bytes(b"")
    ended = validate()
    assert (ended.returncode, "has 0 bytes but is no whole Parquet file" in ended.stderr) == (65, True)
    write_parquet(path, TRAJECTORIES_SCHEMA.empty_table())
    ended = validate()
    assert (ended.returncode, "data/raw/demonstrations.parquet holds 0 demonstrations" in ended.stderr) == (65, True)


def test_unpaired_calls_everywhere_stop_the_run_after_the_page_and_the_quarantine_are_written(checkout, validate, rows):
    table = trajectories_table(rows).to_pylist()
    for columns in table:
        for message in columns["messages"]:
            message["tool_call_id"] = "lost" if message["role"] == "tool" else None
    write_parquet(
        checkout / "data/raw/demonstrations.parquet",
        trajectories_table(()).from_pylist(table, schema=TRAJECTORIES_SCHEMA),
    )
    num_calling = sum(any(message.tool_calls for message in row.trajectory.messages) for row in rows)
    ended = validate()
    assert ended.returncode == 65
    assert (
        f"validate_data.max_quarantine_frac accepts 10.0%. By reason: call_answered {num_calling}, "
        f"results_asked_for {num_calling}" in ended.stderr
    )
    assert len(read_jsonl(checkout / "data/validated/quarantine.jsonl")) >= num_calling
    assert "so the run stopped here" in (checkout / "reports/validate_data/index.html").read_text(encoding="utf-8")
    assert not (checkout / "data/validated/demonstrations.parquet").exists()


def test_a_limit_edited_in_the_knobs_is_the_one_that_holds(checkout, validate):
    apply_overrides(checkout / "params.yaml", {"validate_data.max_tokens": 1, "validate_data.max_quarantine_frac": 0.5})
    ended = validate()
    assert ended.returncode == 65
    assert "accepts 50.0%. By reason: length_limit 200" in ended.stderr
