"""The experiment files for cards: the model that they name fits on the card that they are for. That
their knobs are accepted, tests/experiments/test_plan.py holds of all files."""

import pytest

from benchmarks.gpu.shapes import SHAPES
from posttrain.cli.memory_plan import read_params
from posttrain.memory_estimate.advice import plan_for_card
from posttrain.memory_estimate.processes import Processes
from tests.memory_estimate.test_stages import SEVEN_BILLION


@pytest.mark.needs_large
@pytest.mark.parametrize(
    ("name", "gib", "config", "servers"),
    [("gpu_24", 24, SHAPES["1.5B"], 0), ("gpu_80", 80, SEVEN_BILLION, 0), ("gpus_4x24", 24, SEVEN_BILLION, 3)],
)
def test_the_model_of_a_file_fits_on_its_card(repository, monkeypatch, name, gib, config, servers):
    monkeypatch.chdir(repository)
    params = read_params(repository / f"experiments/{name}.yaml")
    stages, processes = ["train_sft", "train_policy", "evaluate"], Processes(servers=servers)
    plan = plan_for_card(params, config, gpu_gib=gib, stages=stages, processes=processes)
    assert [one.stage for one in plan.too_large] == []
