from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
)

from posttrain.models.loading import load_codec, load_model, save_model
from posttrain.models.lora import add_lora, merge_adapters
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


def test_adapters_begin_as_the_model_itself(qwen_folder: Path) -> None:
    assert add_lora(load_model(qwen_folder), LORA, seed=1)(IDS).logits.equal(load_model(qwen_folder)(IDS).logits)


def test_the_merged_model_says_what_the_adapted_one_said(qwen_folder: Path) -> None:
    model = trained(qwen_folder)
    adapted = model(IDS).logits
    assert not torch.allclose(adapted, load_model(qwen_folder)(IDS).logits, atol=1e-3)
    merged = merge_adapters(model)
    assert type(merged).__name__ == "Qwen2ForCausalLM"
    torch.testing.assert_close(merged(IDS).logits, adapted, atol=1e-5, rtol=1e-5)


def gemma_folder(folder: Path, tokenizer: object) -> Path:
    """A model whose output matrix is its embedding, scaled where it is read."""
    config = Gemma3TextConfig(
        vocab_size=len(tokenizer),
        **CONFIG,
        head_dim=16,
        sliding_window=64,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    save_model(Gemma3ForCausalLM(config), tokenizer, folder)
    return folder


@pytest.mark.parametrize("make", ["gemma", "qwen"])
@pytest.mark.parametrize("targets", [["lm_head"], ["q_proj", "lm_head"]])
def test_adapters_on_an_output_matrix_leave_the_embedding_that_it_was_as_it_is(
    make: str, targets: list[str], qwen_folder: Path, tmp_path: Path
) -> None:
    tokenizer = load_codec(qwen_folder).tokenizer
    folder = qwen_folder if make == "qwen" else gemma_folder(tmp_path / "gemma", tokenizer)
    embedding = load_model(folder).get_input_embeddings().weight
    model = trained(folder, lora=LORA.model_copy(update={"target_modules": targets}))
    with torch.no_grad():
        adapted = model(IDS).logits
        merged = merge_adapters(model)
        save_model(merged, tokenizer, tmp_path / "merged")
        again = load_model(tmp_path / "merged")
        for found in (merged, again):
            torch.testing.assert_close(found(IDS).logits, adapted, atol=1e-4, rtol=0)
            assert found.get_input_embeddings().weight.equal(embedding)
    assert not torch.allclose(load_model(folder)(IDS).logits, adapted, atol=1e-2)
    save_model(again, tokenizer, tmp_path / "once more")
    assert load_model(tmp_path / "once more")(IDS).logits.equal(again(IDS).logits)


def test_a_model_without_adapters_merges_to_itself(qwen_folder: Path) -> None:
    model = load_model(qwen_folder)
    assert merge_adapters(model) is model


def test_a_target_that_is_no_layer_is_refused_with_the_names_there_are(qwen_folder: Path) -> None:
    params = LORA.model_copy(update={"target_modules": ["q_proj", "query"]})
    with pytest.raises(ConfigurationError, match=r"has query, but this model's linear layers are .*q_proj"):
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
