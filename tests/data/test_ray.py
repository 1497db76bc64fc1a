"""A real Ray cluster of two nodes on this machine: batches are shared out to both, and one whose
worker is killed is computed again."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import data_plane
from posttrain.data.files import ParquetBatches, write_parquet
from posttrain.data.resampling import smote
from posttrain.data.schemas import TRAJECTORIES_SCHEMA, trajectories_table
from posttrain.data.validation.validate import summary, validate
from posttrain.runtime.batch_workers import VARIABLE, map_batches

pytestmark = pytest.mark.needs_ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ADDRESS"):
            patch.setenv(name, "")  # what the cluster sets goes with it
        patch.setenv(VARIABLE, "ray")
        with data_plane.cluster(100 << 20):
            yield


def node_of(folder: Path, number: int) -> tuple[int, str]:
    """The node that computes batch `number`; of batch 3 the first worker is killed."""
    import ray

    if number == 3 and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number, ray.get_runtime_context().get_node_id()


def test_batches_are_shared_out_in_order_and_one_whose_worker_is_killed_comes_again(cluster, tmp_path):
    found = list(map_batches(node_of, tmp_path, range(12)))
    assert [number for number, _ in found] == list(range(12))
    assert len({node for _, node in found}) == 2
    assert (tmp_path / "killed").exists()


def test_a_file_is_judged_as_it_is_alone(cluster, toy_rows, tmp_path, monkeypatch):
    write_parquet(tmp_path / "rows.parquet", trajectories_table([*toy_rows[:60], *toy_rows[:5]]))
    batches = ParquetBatches(tmp_path / "rows.parquet", TRAJECTORIES_SCHEMA, max_rows=20)
    shared = validate(batches, [], max_tokens=200, source=tmp_path)
    monkeypatch.setenv(VARIABLE, "1")
    alone = validate(batches, [], max_tokens=200, source=tmp_path)
    assert shared.counts()["no_duplicate"] == 5
    assert (shared.reasons, shared.checked, summary(shared)) == (alone.reasons, alone.checked, summary(alone))


def test_neighbours_are_those_found_alone(cluster, monkeypatch):
    rows_N_D, cells = np.random.default_rng(1).random((300, 8)), ["a"] * 250 + ["b"] * 50
    monkeypatch.setattr(smote, "_BLOCK", 16)
    knobs = {"target_frac": 0.8, "num_neighbors": 3, "seed": 1}
    shared = smote.plan_points("smote", rows_N_D, cells, **knobs)
    monkeypatch.setenv(VARIABLE, "1")
    assert shared == smote.plan_points("smote", rows_N_D, cells, **knobs)
    assert len(shared) == 150
