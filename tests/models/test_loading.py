"""A model comes in without running a stranger's code and goes out as the same bytes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from posttrain.models.loading import load_codec, load_model, load_pretrained, save_model, use_gradient_checkpointing
from posttrain.models.params import FullAdapter, PretrainedModel
from posttrain.models.scratch import scratch_model
from posttrain.runtime.exits import ConfigurationError, DataError
from tests.models.episodes import SCRATCH_PARAMS, TOOLS, conversation


@pytest.fixture
def folder(scratch_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(scratch_folder, tmp_path / "model")


def pretrained(name: str, revision: str | None = None) -> PretrainedModel:
    full = {"adapter": FullAdapter(type="full"), "gradient_checkpointing": False, "dtype": "float32"}
    return PretrainedModel(type="pretrained", name=name, revision=revision, **full)


def test_a_saved_model_is_loaded_with_the_same_weights_and_the_same_tokens(folder: Path, scratch_codec) -> None:
    model = load_model(folder)
    fresh = scratch_model(SCRATCH_PARAMS, tokenizer=scratch_codec.tokenizer, max_context_tokens=256, seed=1)
    assert all(one.equal(same) for one, same in zip(model.parameters(), fresh.parameters(), strict=True))
    assert load_codec(folder).encode_row(conversation(), TOOLS) == scratch_codec.encode_row(conversation(), TOOLS)


def test_saving_what_was_loaded_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder), load_codec(folder).tokenizer, tmp_path / "again")
    names = sorted(path.name for path in folder.iterdir())
    texts = ["chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert names == sorted([*texts, "model.safetensors"])
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
        assert str(tmp_path).encode() not in (folder / name).read_bytes()


def test_scratch_weights_depend_on_the_seed_alone(scratch_tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(99)
    state = torch.get_rng_state()
    one, same, other = (
        scratch_model(SCRATCH_PARAMS, tokenizer=scratch_tokenizer, max_context_tokens=256, seed=seed)
        for seed in (1, 1, 2)
    )
    assert torch.get_rng_state().equal(state)
    assert one.lm_head.weight.equal(same.lm_head.weight)
    assert not one.lm_head.weight.equal(other.lm_head.weight)
    assert one.lm_head.weight is one.model.embed_tokens.weight
    assert one.config.vocab_size == len(scratch_tokenizer)
    assert one.config.max_position_embeddings == 256


def test_a_dtype_is_kept(folder: Path) -> None:
    assert load_model(folder, dtype="bfloat16").dtype == torch.bfloat16


def test_pickled_weights_are_refused_even_beside_good_ones(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"")
    for load in (lambda: load_model(folder), lambda: load_pretrained(pretrained(str(folder)))):
        with pytest.raises(ConfigurationError, match=r"pickle format \(pytorch_model\.bin\)"):
            load()


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no \*\.safetensors"):
        load_model(tmp_path)
    with pytest.raises(ConfigurationError, match="no tokenizer"):
        load_codec(tmp_path)


def test_weights_that_are_cut_off_are_bad_data(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DataError, match="cut off or damaged"):
        load_model(folder)


def test_a_repositorys_own_code_is_never_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    config |= {
        "model_type": "unheard_of",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('ran')\n")
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        load_model(folder)


def test_a_pretrained_model_is_loaded_by_name(qwen_folder: Path) -> None:
    model, tokenizer = load_pretrained(pretrained(str(qwen_folder)))
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert tokenizer.pad_token == "<|endoftext|>"


def test_a_model_that_cannot_be_fetched_is_a_wrong_configuration_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigurationError, match=r"'nobody/no-such-model' at revision 'abc' cannot be loaded .* model.type to scratch"
    ):
        load_pretrained(pretrained("nobody/no-such-model", "abc"))


def test_gradient_checkpointing_changes_no_gradient(folder: Path) -> None:
    gradients = []
    ids = torch.arange(1, 40).view(1, -1)
    for is_checkpointed in (False, True):
        model = load_model(folder)
        if is_checkpointed:
            use_gradient_checkpointing(model)
        model.train()
        model(input_ids=ids, labels=ids).loss.backward()
        gradients.append(model.model.layers[0].mlp.up_proj.weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
