"""Tests of the commands for llama.cpp's programs, by stand-ins for them; the real ones run in the
suite `llamacpp`."""

import json

import pytest

from posttrain.export import gguf_file
from posttrain.export.gguf_file import gguf_of, write_gguf
from posttrain.runtime.exits import ConfigurationError
from tests.console import posttrain

CONVERTER = """
import os, sys
from pathlib import Path
folder, _, file, _, weights = sys.argv[1:]
if said := os.environ.get("SAID"):
    print(said, file=sys.stderr)
    raise SystemExit(1)
Path(file).write_text(f"{weights} of {Path(folder).name}")
"""
QUANTISER = '#!/bin/sh\necho "$3 of $(cat "$1")" >"$2"\n'


@pytest.fixture
def llama_cpp(tmp_path, monkeypatch):
    build = tmp_path / "llamacpp" / "build"
    for folder in ("source", "bin"):
        (build / folder).mkdir(parents=True)
    (build / "source" / "convert_hf_to_gguf.py").write_text(CONVERTER)
    (build / "bin" / "llama-quantize").write_text(QUANTISER)
    (build / "bin" / "llama-quantize").chmod(0o700)
    (build / ".installed").touch()
    monkeypatch.setattr(gguf_file, "LLAMA_CPP", build.parent)
    return build


@pytest.fixture
def mine(tmp_path):
    return model_folder(tmp_path / "mine", "float32")


def model_folder(folder, dtype):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"dtype": dtype}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("weights", ["f32", "f16", "bf16", "q8_0"])
def test_the_converter_writes_these_itself(llama_cpp, mine, weights):
    write_gguf(mine, mine / "file.gguf", weights)
    assert (mine / "file.gguf").read_text() == f"{weights} of mine"


@pytest.mark.parametrize(("dtype", "first"), [("float32", "f32"), ("bfloat16", "bf16")])
def test_others_are_made_of_the_weights_as_they_are(llama_cpp, tmp_path, dtype, first):
    folder = model_folder(tmp_path / "theirs", dtype)
    write_gguf(folder, tmp_path / "deep" / "file.gguf", "q4_k_m")
    assert (tmp_path / "deep" / "file.gguf").read_text() == f"Q4_K_M of {first} of theirs\n"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file.gguf"]


def test_the_command_names_the_file_after_the_folder_and_the_weights(llama_cpp, mine):
    ended = posttrain("export-gguf", mine, "--weights", "q6_k")
    assert ended.exit_code == 0
    assert f"posttrain serve {gguf_of(mine, 'q6_k')}" in ended.stdout
    assert (mine / "mine-q6_k.gguf").exists()
    again = posttrain("export-gguf", mine, "--weights", "q6_k")
    assert (again.exit_code, "--to" in again.stderr) == (78, True)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Traceback\nNotImplementedError: BPE pre-tokenizer was not recognized - update it", "from scratch"),
        ("Traceback\nValueError: no tensors\n", "(ValueError: no tensors)"),
    ],
)
def test_what_the_programs_refuse_leaves_nothing(llama_cpp, mine, monkeypatch, said, told):
    monkeypatch.setenv("SAID", said)
    ended = posttrain("export-gguf", mine)
    assert (ended.exit_code, told in ended.stderr) == (78, True)
    assert sorted(path.name for path in mine.iterdir()) == ["config.json", "model.safetensors"]


def test_without_llama_cpp_the_remedy_is_named(llama_cpp, mine):
    (llama_cpp / ".installed").unlink()
    (mine / "mine.gguf").touch()
    for ended in (posttrain("export-gguf", mine), posttrain("serve", mine / "mine.gguf")):
        assert (ended.exit_code, "setup.sh" in ended.stderr) == (78, True)


def test_without_a_config_it_is_no_models_folder(llama_cpp, mine):
    (mine / "config.json").unlink()
    with pytest.raises(ConfigurationError, match="config"):
        write_gguf(mine, mine / "file.gguf", "q4_k_m")


def test_neither_a_pickle_nor_a_file_that_is_not_there_is_taken(llama_cpp, mine):
    (mine / "pytorch_model.bin").touch()
    with pytest.raises(ConfigurationError, match="pickle"):
        write_gguf(mine, mine / "file.gguf", "q8_0")
    ended = posttrain("serve", mine / "none.gguf")
    assert (ended.exit_code, "export-gguf" in ended.stderr) == (78, True)
