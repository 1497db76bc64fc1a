"""Fixtures of the suites on SmolLM2's real weights: its knobs with those that a module calls SHORT,
and the model as training begins from it."""

from pathlib import Path

import pytest

from benchmarks.gpu.ground import Ground
from benchmarks.pretrained import KNOBS
from posttrain.config.params import Params
from posttrain.models.gguf import get_model
from posttrain.models.loading import load_pretrained, save_model


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground"), is_small=True)


@pytest.fixture(scope="module")
def params(ground: Ground, request: pytest.FixtureRequest) -> Params:
    get_model("smollm2", ground.folder / "smollm2")
    found = ground.checkout_with({**KNOBS, **request.module.SHORT})
    return found.model_copy(update={"model": found.model.model_copy(update={"name": str(ground.folder / "smollm2")})})


@pytest.fixture(scope="module")
def base(ground: Ground, params: Params) -> Path:
    model, tokenizer = load_pretrained(params.model)
    save_model(model, tokenizer, ground.folder / "base")
    return ground.folder / "base"
