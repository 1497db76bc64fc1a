import torch
from safetensors.torch import load_file, save_file

from posttrain.models.lora import add_lora
from posttrain.models.params import LoraAdapter
from posttrain.models.sharding import read_weights_in_turn, write_weights_in_turn
from tests.rollout.tiny_models import tiny_model


def test_weights_written_in_turn_are_a_file_of_safetensors(tmp_path):
    weights = {"odd": torch.arange(3).bfloat16(), "none": torch.zeros(0, 4), "rows": torch.randn(5, 3).T}
    write_weights_in_turn(weights, tmp_path / "own")
    found = load_file(tmp_path / "own")
    assert found.keys() == weights.keys()
    assert all(found[name].equal(weight) and found[name].dtype == weight.dtype for name, weight in weights.items())
    write_weights_in_turn(weights, tmp_path / "rounded", dtype=torch.bfloat16)
    assert load_file(tmp_path / "rounded")["rows"].equal(weights["rows"].bfloat16())


def test_adapters_are_read_by_the_names_of_their_files(tmp_path):
    lora = LoraAdapter(type="lora", r=2, alpha=4, dropout=0.0, target_modules=["q_proj"])
    model, other = (add_lora(tiny_model("qwen3"), lora, seed=seed) for seed in (1, 2))
    own = {name: weight for name, weight in model.state_dict().items() if "lora_" in name}
    save_file({name.replace(".default", ""): weight for name, weight in own.items()}, tmp_path / "adapters")
    assert not all(weight.equal(own[name]) for name, weight in other.state_dict().items() if name in own)
    read_weights_in_turn(other, tmp_path / "adapters")
    assert all(weight.equal(own[name]) for name, weight in other.state_dict().items() if name in own)
