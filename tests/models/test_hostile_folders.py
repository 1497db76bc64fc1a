"""A stranger's model folder is opened, or refused in one sentence; `benchmarks.hostile_models`
opens them all, and measures."""

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from posttrain.models import limited_process, loading
from posttrain.models.chat_template import template_text
from posttrain.models.loading import load_codec, load_model, load_pretrained, save_model
from posttrain.models.params import FullAdapter, PretrainedModel
from posttrain.runtime.exits import ConfigurationError, StageError
from posttrain.train.reward_model import load_reward_model
from tests.models.hostile_folders import HOSTILE, hostile_folder
from tests.tiny import CONFIG

LOOPS = ["loops for a long text", "a power without end"]
# every second one of those that are told at once; the benchmark opens all
QUICK = sorted(name for name in HOSTILE if not re.search("loops|million|doubles|grows|without end", name))[::2]
NOT_OPENED = {  # by whichever stage reads the folder, without a child process
    "prefix of another class": r"2\d are missing \(.*26 are none of the model's \(net",
    "no tensor of the model": r"2\d are missing \(.*1 are none of the model's \(other\)",
    "config of another type": r"6 are none of the model's \(model.layers.0.self_attn.k_proj.bias",
    "a matrix missing": r"1 are missing \(model.layers.1.mlp.up_proj.weight\): what is missing would be random",
    "a layer fewer than config.json has": r"12 are missing",
    "other widths than config.json has": r"6 have another shape \(model.layers.0.mlp.down_proj",
    "all values NaN": r"model.embed_tokens.weight of .* no finite number, so all that the model says would be NaN",
    "one value infinite": r"model.layers.1.mlp.up_proj.weight of .* no finite number",
    "an index that names a pickle": r"pickle format \(weights.pkl\)",
    "an index that leads out": r"index of .* names ../../weights.safetensors",
    "adapters without their model": r"has adapters .* merge them into their base model",
}


def opened(folder: Path, chat_template: str | None = None):
    full = {"adapter": FullAdapter(type="full"), "gradient_checkpointing": False, "dtype": "float32"}
    return load_pretrained(PretrainedModel(type="pretrained", name=str(folder), chat_template=chat_template, **full))


def test_there_are_sixty_and_more():
    assert len(HOSTILE) >= 60


@pytest.mark.parametrize("name", [*QUICK, *LOOPS])
def test_a_hostile_folder_is_refused_in_a_sentence(name, qwen_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(limited_process, "MAX_CPU_S", 1 if name in LOOPS else 10)
    with pytest.raises(StageError) as end:
        opened(hostile_folder(name, qwen_folder, tmp_path / "model"))
    assert 40 < len(str(end.value)) < 1_200
    assert "\n" not in str(end.value)
    assert "template does not end within 1 s" in str(end.value) or name not in LOOPS


@pytest.mark.parametrize("load", [load_model, load_reward_model])
@pytest.mark.parametrize("name", NOT_OPENED)
def test_weights_that_are_not_the_models_are_refused_wherever_a_model_is_loaded(name, load, qwen_folder, tmp_path):
    with pytest.raises(ConfigurationError, match=NOT_OPENED[name]):
        load(hostile_folder(name, qwen_folder, tmp_path / "model"))


def test_a_reward_models_head_is_the_one_thing_that_may_be_new(qwen_folder, capfd):
    assert load_reward_model(qwen_folder).score.weight.shape == (1, CONFIG["hidden_size"])
    assert "LOAD REPORT" not in capfd.readouterr().err


def test_a_reward_models_own_head_must_be_there(qwen_folder, tmp_path):
    load_reward_model(qwen_folder).save_pretrained(tmp_path)
    assert load_reward_model(tmp_path).score.weight.shape == (1, CONFIG["hidden_size"])
    weights = load_file(tmp_path / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"1 are missing \(score.weight\)"):
        load_reward_model(tmp_path)


def test_tables_that_a_model_computes_may_stand_in_an_older_file(qwen_folder, tmp_path):
    """Llama 2 has the frequencies of its rotary embedding there, which are not trained."""
    shutil.copytree(qwen_folder, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    table = load_model(qwen_folder).model.rotary_emb.inv_freq
    save_file(weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": table}, file, metadata={"format": "pt"})
    assert opened(tmp_path / "model")[0].model.norm.weight.equal(weights["model.norm.weight"])


def test_a_special_token_beyond_the_embedding_is_no_fault_unless_it_is_written(qwen_folder, tmp_path):
    tokenizer = load_codec(qwen_folder).tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    for pad in ("<|endoftext|>", "<image>"):
        tokenizer.pad_token = pad
        save_model(load_model(qwen_folder), tokenizer, tmp_path / pad)
    opened(tmp_path / "<|endoftext|>")
    with pytest.raises(ConfigurationError, match="tokens up to number 261, and the model has rows for 261"):
        opened(tmp_path / "<image>")


def test_links_into_the_hubs_or_dvcs_cache_are_followed(qwen_folder, tmp_path):
    for blobs, home in (("hub/blobs", "hub/snapshots/main"), ("cache/files/md5/ab", "tree/model")):
        shutil.copytree(qwen_folder, tmp_path / blobs)
        (tmp_path / home).mkdir(parents=True)
        for file in qwen_folder.iterdir():
            (tmp_path / home / file.name).symlink_to(tmp_path / blobs / file.name)
        assert opened(tmp_path / home)[1].chat_template == opened(qwen_folder)[1].chat_template


def test_the_template_of_ours_is_the_one_that_is_tried(qwen_folder, tmp_path):
    folder = hostile_folder("endless loops", qwen_folder, tmp_path / "model")
    assert opened(folder, "compact")[1].chat_template == template_text("compact")


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
    model, _ = opened(Path("ours/model"))
    assert model.model.norm.weight.equal((parts["a.safetensors"] | parts["b.safetensors"])["model.norm.weight"])
    assert [[name for name in patterns if "safetensors" in name] for patterns in asked] == [[], sorted(parts)]
