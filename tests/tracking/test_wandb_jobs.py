"""Runs of W&B that jobs have left: of snapshots here; tests/real has those of SLURM and of S3."""

import pytest

from posttrain.dispatch.settings import DispatchSettings
from tests.tracking.toy_pipeline import ENVIRONMENT, check_pipeline, make_experiment, run_pipeline

pytest.importorskip("wandb")


@pytest.mark.needs_provenance
@pytest.mark.usefixtures("tree")
def test_two_stages_of_an_experiment_are_one_group_and_outlive_their_snapshots(tmp_path):
    worktree = make_experiment(tmp_path / "flow")
    target = {"type": "local", "num_gpus": 1, "environment": ENVIRONMENT}
    settings = DispatchSettings.model_validate({"target": "here", "targets": {"here": target}, "resources": {}})
    found = run_pipeline(worktree, settings)
    check_pipeline(worktree, found)
    assert [line["loss"] for line in found[0].history if "loss" in line] == [0.5]
    assert found[1].summary["success_rate"] == 0.75
