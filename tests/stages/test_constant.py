"""Stages that `dvc.yaml` calls constant are so: `posttrain plan` counts on it."""

import shutil
from pathlib import Path

import pytest
import yaml

from posttrain.config.params import load_params
from posttrain.pipeline.plan import CONSTANT
from posttrain.provenance.runner import StageRun
from stages.check_params import check_params

FUNCTIONS = {"check_params": check_params}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_constant_stage_makes_the_same_of_other_knobs(
    name: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    params, made = load_params(repository / "params.yaml"), []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        shutil.copyfile(repository / "dvc.yaml", folder / "dvc.yaml")
        monkeypatch.chdir(folder)
        FUNCTIONS[name](StageRun(name, "", params.model_copy(update={"seed": seed}), folder))
        made.append(
            {
                path.relative_to(folder): path.read_bytes()
                for path in folder.rglob("*")
                if path.is_file() and path.name != "dvc.yaml"
            }
        )
    assert made[0] == made[1] != {}


def test_no_other_stage_is_called_constant(repository: Path):
    stages = yaml.safe_load((repository / "dvc.yaml").read_text())["stages"]
    assert {name for name, stage in stages.items() if stage.get("meta", {}).get(CONSTANT)} == set(FUNCTIONS)
