"""What transformers says of loaded weights, where a stage loads them."""

import logging

import pytest

from posttrain.algorithms.reward_model import load_reward_model
from posttrain.models.loading import load_model
from posttrain.stage.load_report import leave_out_new_heads
from tests.rollout.tiny_models import tiny_model


@pytest.fixture
def said(monkeypatch):
    """Lines that transformers' loader logs from now on, as one text."""
    logger, lines = logging.getLogger("transformers.modeling_utils"), []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    before, level = list(logger.filters), logger.level
    logger.setLevel(logging.WARNING)  # other tests of this process ask transformers for less
    leave_out_new_heads()
    yield lines
    logger.removeHandler(handler)
    logger.filters[:] = before
    logger.setLevel(level)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])  # with a head of its own that is left behind, and without
def test_a_head_that_is_new_by_design_is_no_news_and_weights_that_are_lost_are(tmp_path, said, architecture):
    model = tiny_model(architecture)
    model.save_pretrained(tmp_path / "whole")
    load_reward_model(tmp_path / "whole")
    assert said == []
    weights = {
        name: tensor for name, tensor in model.state_dict().items() if not name.endswith("layers.0.mlp.up_proj.weight")
    }
    model.save_pretrained(tmp_path / "lost", state_dict=weights)
    load_reward_model(tmp_path / "lost")
    assert "up_proj" in said[0]
    assert "score.weight" in said[0]
    load_model(tmp_path / "lost")
    assert "up_proj" in said[1]
