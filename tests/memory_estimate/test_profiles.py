"""The two profiles of docs/gpu-memory.md: their diffs apply to the files as they are, the knobs are
accepted, and the model that they name fits on the card."""

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu.shapes import SHAPES
from posttrain.config.params import load_params
from posttrain.dispatch.settings import load_settings
from posttrain.memory_estimate.gpu_cards import plan_for_card
from posttrain.models.params import LoraAdapter, PretrainedModel
from tests.memory_estimate.test_stages import SEVEN_BILLION

NAMED = {
    24: ("Qwen/Qwen2.5-1.5B-Instruct", SHAPES["1.5B"]),
    80: ("Qwen/Qwen2.5-7B-Instruct", SEVEN_BILLION),
}


@pytest.mark.parametrize(("gib", "place"), [(24, 0), (80, 1)])
def test_a_profile_applies_and_fits(repository: Path, tmp_path: Path, gib: int, place: int):
    text = (repository / "docs/gpu-memory.md").read_text(encoding="utf-8")
    diff = re.findall(r"```diff\n(.*?)```", text, flags=re.DOTALL)[place]
    for name in ("params.yaml", "infra/dispatch.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((repository / name).read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run(["git", "apply"], cwd=tmp_path, input=diff, text=True, check=True)
    params, settings = load_params(tmp_path / "params.yaml"), load_settings(tmp_path)
    assert f"train_policy={gib}," in settings.environment_of("check_params")["POSTTRAIN_CARDS"] + ","
    name, config = NAMED[gib]
    assert isinstance(params.model, PretrainedModel)
    assert isinstance(params.model.adapter, LoraAdapter)
    assert params.model.name == name
    plan = plan_for_card(params, config, gpu_gib=gib, stages=["train_policy", "evaluate"])
    assert [one.stage for one in plan.too_large] == []
