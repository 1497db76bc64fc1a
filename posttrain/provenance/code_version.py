"""Names the code and the knobs that a stage runs with: the commit of the person's tree, and what
was edited since.

Git is asked where that tree lies, because a snapshot or a pod has none; these are told in the
environment.
"""

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "POSTTRAIN_VERSION"
_WRITTEN = ("dvc.lock", "data", "reports", "**/.gitignore")  # by the pipeline itself, while it runs


@dataclass(frozen=True, slots=True)
class Version:
    """`commit` has 40 hex digits, and none where there is no git, no repository or no commit.
    `edits` are six of a digest of how the tree differs from it, none where it does not."""

    commit: str = ""
    edits: str = ""
    branch: str = ""

    def __str__(self) -> str:
        """`4cb9056…+1a2b3c`, as `VARIABLE` has it."""
        return self.commit + f"+{self.edits}" * bool(self.edits)

    @property
    def short(self) -> str:
        """`4cb9056+1a2b3c`."""
        return str(Version(self.commit[:7], self.edits))


def read_version(root: Path) -> Version:
    """Of the tree at `root`."""
    commit, _, branch = _git(root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").partition("\n")
    if not commit:
        return Version()
    edits = _git(root, "diff", "HEAD", "--", ".", *(f":(exclude,glob){path}" for path in _WRITTEN))
    return Version(commit, hashlib.sha256(edits.encode()).hexdigest()[:6] if edits else "", branch)


def parse_version(text: str) -> Version:
    """`str` of one; the branch is not in it."""
    commit, _, edits = text.partition("+")
    return Version(commit, edits)


def _git(root: Path, *arguments: str) -> str:
    """What it prints; nothing where there is no git, no repository or no commit."""
    try:
        ran = subprocess.run(
            ["git", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=True,
        )
    except (subprocess.CalledProcessError, OSError):
        return ""
    return ran.stdout.strip()
