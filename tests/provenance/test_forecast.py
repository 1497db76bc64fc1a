"""What a stage will take is taken from the last run that is known, in proportion to its work."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from posttrain.pipeline.graph import read_graph
from posttrain.provenance.costs import COSTS, Cost, append_cost, processor_kind
from posttrain.provenance.eta import read_forecast
from posttrain.provenance.run_records import record_run
from posttrain.runtime.state import state_dir

RUN = Cost("train_sft", 300.0, 400.0, 900.0, False, 1764000000.0, processor=processor_kind(), num_threads=1)
KNOBS = {
    "seed": 1,
    "train_sft": {"max_steps": 100, "batch_size": 16, "lr": 0.1},
    "train_policy": {"algorithm": {"type": "online", "max_steps": 10, "tasks_per_step": 4, "group_size": 8}},
    "world": {"num_test_tasks": 50},
    "evaluate": {"num_samples": 2},
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree whose committed runs took 400 s each."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(KNOBS))
    params = {
        "train_sft": {"seed": 1, "train_sft": KNOBS["train_sft"]},
        "train_policy": {"train_policy": KNOBS["train_policy"]},
        "evaluate@sft": {"world": KNOBS["world"], "evaluate.num_samples": 2},
    }
    entries = {
        name: {"cmd": "x", "params": {"params.yaml": knobs}, "outs": [{"path": name, "md5": 32 * "a"}]}
        for name, knobs in params.items()
    }
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": entries}))
    state_dir(tmp_path)
    for name, entry in entries.items():
        record_run(tmp_path, name, entry, replace(RUN, stage=name))
    (tmp_path / COSTS).unlink()
    return tmp_path


def edit(root: Path, key: str, value: object) -> None:
    content = yaml.safe_load((root / "params.yaml").read_text())
    *path, last = key.split(".")
    section = content
    for part in path:
        section = section[part]
    section[last] = value
    (root / "params.yaml").write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("key", "value", "stage", "seconds"),
    [
        ("train_sft.lr", 0.2, "train_sft", 400.0),
        ("train_sft.max_steps", 250, "train_sft", 1000.0),
        ("train_policy.algorithm.group_size", 4, "train_policy", 200.0),
        ("train_policy.algorithm", {"type": "dpo", "max_steps": 20}, "train_policy", 800.0),
        ("world.num_test_tasks", 100, "evaluate@sft", 800.0),
        ("evaluate.num_samples", "many", "evaluate@sft", 400.0),
    ],
)
def test_a_committed_run_counts_in_proportion_to_the_work_of_the_present_knobs(root, key, value, stage, seconds):
    edit(root, key, value)
    found = read_forecast(root)
    assert found.committed[stage] == pytest.approx(seconds)
    assert found.spread == 1.0
    assert found.whose.endswith(", 1 threads, 2025-11-24")


def test_a_run_of_this_tree_counts_as_it_was_where_its_knobs_are_not_known_any_more(root):
    edit(root, "train_sft.max_steps", 200)
    append_cost(replace(RUN, whole_s=90.0, key="another"), root / COSTS)
    assert read_forecast(root).here == {"train_sft": 90.0}


@pytest.mark.parametrize("other", [{"processor": "Z80"}, {"num_threads": 4096}, {"num_gpus": 8}])
def test_another_kind_of_machine_is_told(root, other):
    (root / "reports/runs.jsonl").unlink()
    record_run(root, "train_sft", {"cmd": "x"}, replace(RUN, **other))
    assert read_forecast(root).spread == 2.0


def test_a_tree_without_runs_or_with_a_damaged_record_has_no_forecast(root):
    (root / "reports/runs.jsonl").write_text("{\n")
    assert read_forecast(root).committed == {}
    assert read_forecast(root).whose == ""


def test_the_committed_runs_of_this_repository_cover_every_stage(repository):
    assert set(read_forecast(repository).committed) == {node.name for node in read_graph(repository)}
