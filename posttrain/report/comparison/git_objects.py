"""Reads files of many commits out of git's objects, through two processes and without a checkout;
and finds the working trees of a repository."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from posttrain.pipeline.git import git, succeeds
from posttrain.runtime.exits import ConfigurationError

_REF = "refs/heads/"


def object_ids(root: Path, names: Sequence[str]) -> list[str | None]:
    """The hash of each object, by any name that git knows it by: `main^{commit}`,
    `exp/a:./params.yaml`, the dot for `root` itself. None of what there is not.

    Raises ConfigurationError where git does not run here."""
    asked = [name for name in names if "\n" not in name and "\0" not in name]  # a line is a name
    with _cat_file(root, "--batch-check=%(objectname)", asked) as answer:
        answers = answer.read().splitlines()
    found = dict(zip(asked, answers, strict=True))
    return [_hash(found.get(name, b"")) for name in names]


def read_objects(root: Path, ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The hash and the content of each object, one at a time: git unpacks the next one meanwhile.
    What two commits share is read once. Raises ConfigurationError for one that git cannot read."""
    unique = list(dict.fromkeys(ids))
    with _cat_file(root, "--batch=%(objectsize)", unique) as answer:
        for name in unique:
            size = answer.readline().strip()
            if not size.isdigit():
                raise ConfigurationError(
                    f"git cannot read the object {name} of {root}: `git fsck` says what is damaged"
                )
            yield name, answer.read(int(size))
            answer.read(1)  # the newline that git puts behind


@contextlib.contextmanager
def _cat_file(root: Path, how: str, names: Sequence[str]) -> Iterator[IO[bytes]]:
    """Output of `git cat-file` on `names`, while it writes it."""
    with tempfile.TemporaryFile() as asked:  # through two pipes, each side could wait for the other
        asked.write("".join(f"{name}\n" for name in names).encode(errors="surrogateescape"))
        asked.seek(0)
        try:
            process = subprocess.Popen(
                ["git", "cat-file", "--buffer", how],
                cwd=root,
                stdin=asked,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError as error:
            raise ConfigurationError("git is not installed here") from error
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            yield process.stdout
            if process.wait():
                reason = process.stderr.read().decode(errors="replace").strip()
                raise ConfigurationError(f"git cannot read {root}: {reason}")


def _hash(answer: bytes) -> str | None:
    """Hash that git answered; None for a missing or ambiguous name, which git repeats and says
    so."""
    return answer.decode() if len(answer) in (40, 64) and b" " not in answer else None


def worktrees(root: Path) -> dict[Path, str]:
    """Working trees of a repository that exist, each with its branch, or an empty text."""
    found = {}
    for block in git(root, "worktree", "list", "--porcelain").split("\n\n"):
        lines = dict(line.partition(" ")[::2] for line in block.splitlines())
        folder = Path(lines.get("worktree", ""))
        if folder.is_dir() and "bare" not in lines:
            found[folder] = lines.get("branch", "").removeprefix(_REF)
    return found


def branches_with_edits(root: Path, names: Iterable[str]) -> set[str]:
    """The branches of `names` whose working tree has edits of tracked files; HEAD stands for the
    branch of `root`."""
    wanted, found = set(names), set[str]()
    try:
        here = Path(git(root, "rev-parse", "--show-toplevel"))
    except ConfigurationError:  # a bare repository
        here = None
    for folder, branch in worktrees(root).items():
        called = wanted & ({branch, f"{_REF}{branch}"} | ({"HEAD", "@"} if folder == here else set()))
        if called and not succeeds(folder, "diff", "--quiet", "HEAD"):
            found |= called
    return found
