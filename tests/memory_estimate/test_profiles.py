"""The two profiles of docs/gpu-memory.md: their diffs apply to the files as they are, the knobs are
accepted, and the model that they name fits on the card."""

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu.shapes import SHAPES
from posttrain.config.params import load_params
from posttrain.dispatch.settings import load_settings
from posttrain.memory_estimate.advice import plan_for_card
from posttrain.models.params import LoraAdapter, PretrainedModel
from tests.memory_estimate.test_stages import SEVEN_BILLION

NAMED = {
    24: ("Qwen/Qwen2.5-1.5B-Instruct", SHAPES["1.5B"]),
    80: ("Qwen/Qwen2.5-7B-Instruct", SEVEN_BILLION),
}


@pytest.fixture(params=[(24, 0), (80, 1)], ids=["24", "80"])
def profile(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> tuple[int, Path]:
    """The GiB of the card, and a folder with the files after its diff."""
    gib, place = request.param
    text = (repository / "docs/gpu-memory.md").read_text(encoding="utf-8")
    diff = re.findall(r"```diff\n(.*?)```", text, flags=re.DOTALL)[place]
    for name in ("params.yaml", "infra/dispatch.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((repository / name).read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run(["git", "apply"], cwd=tmp_path, input=diff, text=True, check=True)
    return gib, tmp_path


def test_a_profile_applies_and_its_knobs_are_accepted(profile: tuple[int, Path]):
    gib, folder = profile
    params, settings = load_params(folder / "params.yaml"), load_settings(folder)
    assert f"train_policy={gib}," in settings.environment_of("check_params")["POSTTRAIN_CARDS"] + ","
    assert isinstance(params.model, PretrainedModel)
    assert isinstance(params.model.adapter, LoraAdapter)
    assert params.model.name == NAMED[gib][0]


@pytest.mark.needs_large
def test_the_model_of_a_profile_fits_on_its_card(profile: tuple[int, Path]):
    gib, folder = profile
    params = load_params(folder / "params.yaml")
    plan = plan_for_card(params, NAMED[gib][1], gpu_gib=gib, stages=["train_policy", "evaluate"])
    assert [one.stage for one in plan.too_large] == []
