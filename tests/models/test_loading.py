"""A model comes in without running a stranger's code and goes out as the same bytes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from posttrain.models import loading
from posttrain.models.chat_template import template_text
from posttrain.models.loading import load_codec, load_model, load_pretrained, save_model, use_gradient_checkpointing
from posttrain.models.params import FullAdapter, PretrainedModel
from posttrain.models.scratch import scratch_model
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.train.reward_model import load_reward_model
from tests.models.episodes import SCRATCH_PARAMS, TOOLS, conversation
from tests.tiny import CONFIG


@pytest.fixture
def folder(scratch_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(scratch_folder, tmp_path / "model")


def pretrained(name: Path | str, **knobs: str) -> PretrainedModel:
    full = {"adapter": FullAdapter(type="full"), "gradient_checkpointing": False, "dtype": "float32"}
    return PretrainedModel(type="pretrained", name=str(name), **full, **knobs)


def with_weights(change):
    """A change of a folder by a change of its weights, {name: tensor}."""

    def apply(folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return apply


def with_value(number: float):
    return with_weights(lambda weights: {key: weight.index_fill(0, torch.tensor([1]), number) if "up_proj" in key
                                         else weight for key, weight in weights.items()})  # fmt: skip


def with_config(**changes):
    def apply(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return apply


def with_index(name: str):
    index = json.dumps({"metadata": {}, "weight_map": {"model.norm.weight": name}})
    return lambda folder: (folder / "model.safetensors.index.json").write_text(index)


def with_adapters_alone(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "nobody/base"}')


WRONG_FOLDERS = {
    "another prefix": (with_weights(lambda all_: {f"net.{key}": one for key, one in all_.items()}), r"2\d are missing"),
    "a matrix missing": (
        with_weights(lambda all_: {key: one for key, one in all_.items() if "1.mlp.up" not in key}),
        r"1 are missing \(model.layers.1.mlp.up_proj.weight\): what is missing would be random",
    ),
    "another type": (
        with_config(model_type="llama", architectures=["LlamaForCausalLM"]),
        r"6 are none of the model's \(model.layers.0.self_attn.k_proj.bias",
    ),
    "other widths": (with_config(intermediate_size=128), r"6 have another shape \(model.layers.0.mlp.down_proj"),
    "values NaN": (with_value(float("nan")), "no finite number, so all that the model says would be NaN"),
    "values infinite": (with_value(float("inf")), r"model.layers.0.mlp.up_proj.weight of .* no finite number"),
    "a pickle in the index": (with_index("weights.pkl"), "index of .* names weights.pkl"),
    "another folder in the index": (with_index("../../w.safetensors"), "index of .* names ../../w.safetensors"),
    "adapters alone": (with_adapters_alone, "has adapters .* merge them into their base model"),
}


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


def test_pickled_weights_are_refused_even_beside_good_ones(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"")
    for load in (lambda: load_model(folder), lambda: load_pretrained(pretrained(folder))):
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
    model, tokenizer = load_pretrained(pretrained(qwen_folder))
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert tokenizer.pad_token == "<|endoftext|>"


def test_a_model_that_cannot_be_fetched_is_a_wrong_configuration_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigurationError, match=r"'nobody/no-such-model' at revision 'abc' cannot be loaded .* model.type to scratch"
    ):
        load_pretrained(pretrained("nobody/no-such-model", revision="abc"))


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


@pytest.mark.parametrize("load", [load_model, load_reward_model])
@pytest.mark.parametrize("wrong", WRONG_FOLDERS)
def test_weights_that_are_not_the_models_are_refused_wherever_a_model_is_loaded(wrong, load, qwen_folder, tmp_path):
    folder = shutil.copytree(qwen_folder, tmp_path / "model")
    change, said = WRONG_FOLDERS[wrong]
    change(folder)
    with pytest.raises(ConfigurationError, match=said):
        load(folder)


def test_a_reward_models_head_is_the_one_thing_that_may_be_new(qwen_folder, tmp_path, capfd):
    load_reward_model(qwen_folder).save_pretrained(tmp_path)
    assert "LOAD REPORT" not in capfd.readouterr().err
    assert load_reward_model(tmp_path).score.weight.shape == (1, CONFIG["hidden_size"])
    with_weights(lambda weights: {key: one for key, one in weights.items() if key != "score.weight"})(tmp_path)
    with pytest.raises(ConfigurationError, match=r"1 are missing \(score.weight\)"):
        load_reward_model(tmp_path)


def test_tables_that_a_model_computes_may_stand_in_an_older_file(qwen_folder, tmp_path):
    """Llama 2 has the frequencies of its rotary embedding there, which are not trained."""
    folder = shutil.copytree(qwen_folder, tmp_path / "model")
    table = load_model(qwen_folder).model.rotary_emb.inv_freq
    with_weights(lambda weights: weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": table})(folder)
    assert load_pretrained(pretrained(folder))[0].model.norm.weight.equal(load_model(qwen_folder).model.norm.weight)


def test_a_special_token_beyond_the_embedding_is_no_fault_unless_it_is_written(qwen_folder, tmp_path):
    tokenizer = load_codec(qwen_folder).tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    for pad in ("<|endoftext|>", "<image>"):
        tokenizer.pad_token = pad
        save_model(load_model(qwen_folder), tokenizer, tmp_path / pad)
    load_pretrained(pretrained(tmp_path / "<|endoftext|>"))
    with pytest.raises(ConfigurationError, match="tokens up to number 261, and the model has rows for 261"):
        load_pretrained(pretrained(tmp_path / "<image>"))


def test_a_template_of_ours_takes_the_place_of_the_models(qwen_folder):
    _, tokenizer = load_pretrained(pretrained(qwen_folder, chat_template="compact"))
    assert tokenizer.chat_template == template_text("compact")


def test_a_hubs_repository_gives_its_texts_and_the_weights_that_its_index_names(qwen_folder, tmp_path, monkeypatch):
    """The hub is stood for by a folder and the one function that asks it."""
    parts = {"a.safetensors": {}, "b.safetensors": {}}
    for number, (key, weight) in enumerate(load_file(qwen_folder / "model.safetensors").items()):
        parts["ab"[number % 2] + ".safetensors"][key] = weight
    shutil.copytree(qwen_folder, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    for name, weights in parts.items():
        save_file(weights, tmp_path / "model" / name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: name for name, weights in parts.items() for key in weights}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    asked = []

    def download(name, **how):
        asked.append(how["allow_patterns"])
        return str(tmp_path / "model")

    monkeypatch.setattr(loading, "snapshot_download", download)
    model, _ = load_pretrained(pretrained("ours/model"))
    assert model.model.norm.weight.equal((parts["a.safetensors"] | parts["b.safetensors"])["model.norm.weight"])
    assert [[name for name in patterns if "safetensors" in name] for patterns in asked] == [[], sorted(parts)]
