"""Reads files of many commits out of git's objects, through two processes and without a
checkout."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from posttrain.runtime.exits import ConfigurationError


def object_ids(root: Path, names: Sequence[str]) -> list[str | None]:
    """The hash of each object, by any name that git knows it by: `main^{commit}`,
    `exp/a:./params.yaml`, the dot for `root` itself. None of what there is not.

    Raises ConfigurationError where git does not run here."""
    asked = [name for name in names if "\n" not in name and "\0" not in name]  # a line is a name
    with _cat_file(root, "--batch-check=%(objectname)", asked) as told:
        answers = told.read().splitlines()
    found = dict(zip(asked, answers, strict=True))
    return [_hash(found.get(name, b"")) for name in names]


def read_objects(root: Path, ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The hash and the content of each object, one at a time: git unpacks the next one meanwhile.
    What two commits share is read once. Raises ConfigurationError for one that git cannot read."""
    unique = list(dict.fromkeys(ids))
    with _cat_file(root, "--batch=%(objectsize)", unique) as told:
        for name in unique:
            size = told.readline().strip()
            if not size.isdigit():
                raise ConfigurationError(
                    f"git cannot read the object {name} of {root}: `git fsck` says what is damaged"
                )
            yield name, told.read(int(size))
            told.read(1)  # the newline that git puts behind


@contextlib.contextmanager
def _cat_file(root: Path, how: str, names: Sequence[str]) -> Iterator[IO[bytes]]:
    """What git says of each of `names`, while it says it."""
    with tempfile.TemporaryFile() as asked:  # through two pipes, each side could wait for the other
        asked.write("".join(f"{name}\n" for name in names).encode(errors="surrogateescape"))
        asked.seek(0)
        try:
            git = subprocess.Popen(
                ["git", "cat-file", "--buffer", how],
                cwd=root,
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError as error:
            raise ConfigurationError("git is not installed here") from error
        with git:
            assert git.stdout is not None
            assert git.stderr is not None
            yield git.stdout
            if git.wait():
                raise ConfigurationError(
                    f"git cannot read {root}: {git.stderr.read().decode(errors='replace').strip()}"
                )


def _hash(answer: bytes) -> str | None:
    """Of a missing or ambiguous name git repeats the name and says so."""
    return answer.decode() if len(answer) in (40, 64) and b" " not in answer else None
