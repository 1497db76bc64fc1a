"""Models that a stage computes with are moved to the device; what is only saved or sharded is not.
`meta` stands for the GPU."""

import pytest
import torch

from posttrain.models import distributed
from posttrain.models.loading import load_model, load_on_cpu
from posttrain.models.params import LoraAdapter
from posttrain.models.sharding import place_for_training
from posttrain.train.reward_model import load_reward_model, new_reward_model
from posttrain.train.trainable import load_trainable
from tests.models.episodes import SCRATCH_PARAMS

LORA = SCRATCH_PARAMS.model_copy(
    update={"adapter": LoraAdapter(type="lora", r=2, alpha=4, dropout=0.0, target_modules=["q_proj"])}
)
GPU = torch.device("meta")


@pytest.mark.parametrize(
    "load",
    [
        load_model,
        lambda path: load_trainable(path, SCRATCH_PARAMS, seed=0),
        lambda path: load_trainable(path, LORA, seed=0),
        load_reward_model,
        lambda path: new_reward_model(path, SCRATCH_PARAMS, seed=0),
    ],
    ids=["evaluated", "trained", "with adapters", "a reward model", "a new reward model"],
)
def test_what_computes_lives_where_models_live(monkeypatch, scratch_folder, load):
    monkeypatch.setattr(distributed, "device", lambda: GPU)
    assert {weight.device.type for weight in load(scratch_folder).parameters()} == {"meta"}


def test_what_is_saved_or_sharded_stays_in_main_memory(monkeypatch, scratch_folder):
    monkeypatch.setattr(distributed, "device", lambda: GPU)
    model = load_on_cpu(scratch_folder)
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert {weight.device.type for weight in place_for_training(model).parameters()} == {"cpu"}


def test_each_process_has_a_gpu_of_its_own_and_may_be_told_to_use_none(monkeypatch):
    assert distributed.device() == torch.device("cpu") or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert distributed.device() == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert distributed.device() == torch.device("cuda", 3)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert distributed.device() == torch.device("cpu")
