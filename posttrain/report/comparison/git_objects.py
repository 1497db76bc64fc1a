"""Reads files of many commits out of git's objects, through one process and without a checkout."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from posttrain.pipeline.git import git, succeeds
from posttrain.runtime.exits import ConfigurationError


class Object(NamedTuple):
    """An object of git; `id` is its hash, equal for equal contents."""

    id: str
    content: bytes


def read_objects(root: Path, names: Sequence[str]) -> Iterator[Object | None]:
    """The object of each name, such as `0123abc:./params.yaml` (the dot is `root` itself); None of
    a name that git does not know. One at a time: all together would fill the memory.

    A name is a line to git, so it holds no newline: name commits by their hashes."""
    # A file, because git would stop reading names from a pipe while nobody reads its answers.
    with tempfile.TemporaryFile() as asked:
        asked.write("".join(f"{name}\n" for name in names).encode())
        asked.seek(0)
        command = ["git", "cat-file", "--buffer", "--batch=%(objectname) %(objectsize)"]
        with subprocess.Popen(command, cwd=root, stdin=asked, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for name in names:
                answer = process.stdout.readline()
                if not answer:
                    raise ConfigurationError(f"git cannot read {name} of {root}: `git fsck` says what is damaged")
                object_id, _, size = answer.decode().strip().rpartition(" ")
                if not size.isdigit():  # the name and `missing`, or `ambiguous`
                    yield None
                    continue
                yield Object(object_id, process.stdout.read(int(size)))
                process.stdout.read(1)  # the newline that git puts behind


def full_name(root: Path, name: str) -> str:
    """`refs/heads/main` of `main`, and of `HEAD` where that is checked out; empty of a commit."""
    with contextlib.suppress(ConfigurationError):
        return git(root, "rev-parse", "--symbolic-full-name", "--verify", "--quiet", name)
    return ""


def edited_branches(root: Path) -> set[str]:
    """Full names of the branches whose working tree has edits of tracked files."""
    found = set()
    for block in git(root, "worktree", "list", "--porcelain").split("\n\n"):
        lines = dict(line.partition(" ")[::2] for line in block.splitlines())
        folder, branch = Path(lines.get("worktree", "")), lines.get("branch")
        # a worktree's folder may have been deleted by hand
        if branch and folder.is_dir() and not succeeds(folder, "diff", "--quiet", "HEAD"):
            found.add(branch)
    return found
