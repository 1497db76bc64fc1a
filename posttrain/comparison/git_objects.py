"""Reads files of many commits out of git's objects, through two processes and without a
checkout."""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from posttrain.exits import ConfigurationError


def object_ids(root: Path, names: Sequence[str]) -> list[str | None]:
    """The hash of each object, by any name that git knows it by: `main^{commit}`,
    `exp/a:./params.yaml`, the dot for `root` itself. None of what there is not.

    Raises ConfigurationError where git does not run here."""
    asked = [name for name in names if "\n" not in name and "\0" not in name]  # a line is a name
    answers = iter(_cat_file(root, "--batch-check=%(objectname)", asked).splitlines())
    found = dict(zip(asked, answers, strict=True))
    return [_hash(found.get(name, b"")) for name in names]


def read_objects(root: Path, ids: Iterable[str]) -> dict[str, bytes]:
    """The content of each object, by its hash; what two commits share is read once."""
    unique = list(dict.fromkeys(ids))
    answers, at = _cat_file(root, "--batch=%(objectsize)", unique), 0
    contents = {}
    for name in unique:
        start = answers.index(b"\n", at) + 1
        at = start + int(answers[at : start - 1])
        contents[name] = answers[start:at]
        at += 1  # the newline that git puts behind
    return contents


def _cat_file(root: Path, how: str, lines: Sequence[str]) -> bytes:
    text = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
    try:
        ran = subprocess.run(["git", "cat-file", how], cwd=root, input=text, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ConfigurationError("git is not installed here") from error
    if ran.returncode:
        raise ConfigurationError(f"git cannot read {root}: {ran.stderr.decode(errors='replace').strip()}")
    return ran.stdout


def _hash(answer: bytes) -> str | None:
    """Of a missing or ambiguous name git repeats the name and says so."""
    return answer.decode() if len(answer) in (40, 64) and b" " not in answer else None
