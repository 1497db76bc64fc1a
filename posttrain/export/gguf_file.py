"""Writes a model's folder as GGUF: one file of weights, tokenizer and chat template for llama.cpp,
and for what is built on it, on machines without a GPU.

llama.cpp's own programs write it, as `infra/llamacpp/setup.sh` builds them: how a family's weights
lie there, and which of its cuts of texts a tokenizer has, nobody else keeps up with.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from posttrain.models.loading import first_line, refuse_unsafe_folder
from posttrain.models.params import read_config
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import reason

LLAMA_CPP = Path("infra/llamacpp")
_CONVERTED = ("f32", "f16", "bf16", "q8_0")  # what the converter writes; the rest is the quantiser's
_UNKNOWN_CUT = "pre-tokenizer was not recognized"


def gguf_of(folder: Path, weights: str) -> Path:
    """Default path of a folder's GGUF file."""
    return folder / f"{folder.resolve().name}-{weights}.gguf"


def write_gguf(folder: Path, target: Path, weights: str) -> None:
    """Write `folder` as one GGUF file, its matrices in `weights`, a type of llama.cpp's in small
    letters. Raises ConfigurationError where `target` exists, llama.cpp was not built here or cannot
    have this model."""
    if target.exists():
        raise ConfigurationError(f"{target} exists: remove it, or name another file with --to")
    refuse_unsafe_folder(folder)
    refuse_without_llama_cpp()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=target.parent) as scratch:
        file = Path(scratch) / "converted.gguf"
        first = weights if weights in _CONVERTED else _as_they_are(folder)
        converter = LLAMA_CPP / "build/source/convert_hf_to_gguf.py"
        _run(folder, sys.executable, str(converter), str(folder), "--outfile", str(file), "--outtype", first)
        if first != weights:
            whole, file = file, Path(scratch) / "quantised.gguf"
            _run(folder, str(LLAMA_CPP / "build/bin/llama-quantize"), str(whole), str(file), weights.upper())
        file.rename(target)


def _as_they_are(folder: Path) -> str:
    """Type of a folder's weights, by its name in GGUF."""
    try:
        dtype = read_config(folder / "config.json").get("dtype")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{folder} has no config.json that can be read: {first_line(error)}") from error
    return {"float32": "f32", "float16": "f16"}.get(str(dtype), "bf16")


def refuse_without_llama_cpp() -> None:
    """Raises ConfigurationError where llama.cpp was not built."""
    if not LLAMA_CPP.is_dir():
        raise ConfigurationError(f"{LLAMA_CPP} is not here: run this from the root of the repository")
    if not (LLAMA_CPP / "build/.installed").exists():
        raise ConfigurationError(
            f"llama.cpp is not in {LLAMA_CPP / 'build'}: {LLAMA_CPP / 'setup.sh'} builds it there, in ten minutes"
        )


def _run(folder: Path, *command: str) -> None:
    packages = {"PYTHONPATH": str(LLAMA_CPP / "build/packages"), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, check=False, env=os.environ | packages, capture_output=True, text=True)
    if ended.returncode == 0:
        return
    if _UNKNOWN_CUT in ended.stderr:
        raise ConfigurationError(
            f"llama.cpp does not know how the tokenizer of {folder} cuts a text, as of every model from scratch: only "
            "pretrained models can be GGUF. `posttrain serve` takes the folder as it is, with vLLM"
        )
    [*_, last] = ended.stderr.strip().splitlines() or ["it said nothing"]
    raise ConfigurationError(f"llama.cpp cannot write {folder} as GGUF ({reason(last)})")
