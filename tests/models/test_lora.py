from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

from posttrain.models.loading import load_model
from posttrain.models.lora import activate_second, add_lora, merge_adapters, round_lora_once, split_by_adapter
from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import LIKE_QWEN3, LINEAR_LAYERS, LoraAdapter
from posttrain.runtime.exits import ConfigurationError
from tests.tiny import CONFIG

LORA = LoraAdapter(type="lora", r=4, alpha=8, dropout=0.0, target_modules=["q_proj", "v_proj"])
IDS = torch.arange(1, 25).view(1, -1)
SIZES = {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}


def trained(folder: Path, *, kind: str = "adamw", lora: LoraAdapter = LORA) -> torch.nn.Module:
    model = add_lora(load_model(folder), lora, seed=1)
    optimizer = build_optimizer(model, kind, 1.0e-2)
    for _ in range(5):
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_only_adapters_are_trained(qwen_folder: Path, kind: str) -> None:
    model, before = trained(qwen_folder, kind=kind), load_model(qwen_folder).state_dict()
    for name, weight in model.named_parameters():
        plain_name = name.removeprefix("base_model.model.").replace(".base_layer", "")
        assert weight.requires_grad == ("lora_" in name), name
        if "lora_" not in name:
            assert weight.equal(before[plain_name]), name
    assert all(weight.abs().sum() > 0 for name, weight in model.named_parameters() if "lora_B" in name)


def test_the_merged_model_says_what_the_adapted_one_said(qwen_folder: Path) -> None:
    model = trained(qwen_folder)
    adapted = model(IDS).logits
    assert not torch.allclose(adapted, load_model(qwen_folder)(IDS).logits, atol=1e-3)
    merged = merge_adapters(model)
    assert type(merged).__name__ == "Qwen2ForCausalLM"
    torch.testing.assert_close(merged(IDS).logits, adapted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("wrong", ["query", "lm_head"])
def test_a_target_that_is_no_layer_or_the_head_is_refused(qwen_folder: Path, wrong: str) -> None:
    params = LORA.model_copy(update={"target_modules": ["q_proj", wrong]})
    with pytest.raises(ConfigurationError, match=rf"has {wrong}, but this model's linear layers are .*q_proj"):
        add_lora(load_model(qwen_folder), params, seed=1)


@pytest.mark.parametrize("kind", LIKE_QWEN3)
def test_the_layers_that_knobs_are_held_against_are_those_of_the_policy_and_the_reward_model(kind: str) -> None:
    """So that a target is refused before anything runs exactly where `add_lora` of one of the
    stages would refuse it."""
    config = AutoConfig.for_model(kind, vocab_size=8, **CONFIG)
    with torch.device("meta"):
        made = [one.from_config(config) for one in (AutoModelForCausalLM, AutoModelForSequenceClassification)]
    named = [{name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)} for model in made]
    assert named[0] & named[1] == {f"model.layers.{index}.{name}" for index in range(2) for name in LINEAR_LAYERS}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_adapters_are_added_up_alike_before_and_after_they_are_merged(
    qwen_folder: Path, dtype: torch.dtype
) -> None:
    model = add_lora(load_model(qwen_folder), LORA, seed=1, has_second=True)
    torch.manual_seed(0)
    for part in split_by_adapter(model):
        for weight in part:
            torch.nn.init.normal_(weight, std=0.2)
    if dtype == torch.bfloat16:
        round_lora_once(model.to(dtype), dtype)
    adapted = model(IDS).logits.float()
    first_alone = model.base_model.set_adapter("default") or model(IDS).logits.float()
    activate_second(model)
    merged = merge_adapters(model)(IDS).logits.float()

    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.05}
    torch.testing.assert_close(merged, adapted, **close)
    assert not torch.allclose(first_alone, adapted, atol=0.1)
