"""Names the code and the knobs that a stage runs with (commit, edits since, branch), also in
wandb's own variables.

Git is asked in the person's tree, because a snapshot or a pod has none; these get the answer by
the environment.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "POSTTRAIN_VERSION"
_WRITTEN = ("dvc.lock", "data", "reports", "**/.gitignore")  # by the pipeline itself, while it runs
_MAX_TAG_CHARS, _MAX_NAME_CHARS = 64, 90  # W&B refuses longer tags, and groups of more than 128


@dataclass(frozen=True, slots=True)
class Version:
    """`commit` has 40 hex digits, and none where there is no git, no repository or no commit.
    `edits` are six of a digest of how the tree differs from it, none where it does not."""

    commit: str = ""
    edits: str = ""
    branch: str = ""

    def __str__(self) -> str:
        """`4cb9056…+1a2b3c`, the value of `VARIABLE`."""
        return self.commit + f"+{self.edits}" * bool(self.edits)

    @property
    def short(self) -> str:
        """`4cb9056+1a2b3c`."""
        return str(Version(self.commit[:7], self.edits))


def read_version(root: Path) -> Version:
    commit, _, branch = _git(root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").partition("\n")
    if not commit:
        return Version()
    edits = _git(root, "diff", "HEAD", "--", ".", *(f":(exclude,glob){path}" for path in _WRITTEN))
    return Version(commit, hashlib.sha256(edits.encode()).hexdigest()[:6] if edits else "", branch)


def parse_version(text: str) -> Version:
    """Inverse of `str`, without the branch."""
    commit, _, edits = text.partition("+")
    return Version(commit, edits)


def wandb_variables(
    root: Path, environment: Mapping[str, str] | None = None, version: Version | None = None
) -> dict[str, str]:
    """W&B's variables for the tree at `root`: `WANDB_RUN_GROUP` is `base-seed1-4cb9056` on the
    branch exp/base-seed1, `WANDB_TAGS` branch and commit. A value in the environment stays."""
    given = os.environ if environment is None else environment
    version, seed = version or read_version(root), _seed(root)
    if not version.commit:
        found = {"WANDB_RUN_GROUP": f"no-git-seed{seed}"}
    else:
        experiment = version.branch.removeprefix("exp/").removesuffix(f"-seed{seed}")
        found = {
            "WANDB_RUN_GROUP": f"{experiment[:_MAX_NAME_CHARS]}-seed{seed}-{version.short}",
            "WANDB_TAGS": f"{version.branch.replace(',', '-')[:_MAX_TAG_CHARS]},{version.short}",
            "WANDB_GIT_COMMIT": version.commit,
        }
    names = ("WANDB_RUN_GROUP", "WANDB_TAGS", "WANDB_GIT_COMMIT")
    return {name: value for name in names if (value := given.get(name) or found.get(name))}


def _seed(root: Path) -> str:
    try:
        found = re.search(r"^seed: *(\d+)", (root / "params.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):  # the reader of the knobs reports what is wrong with the file
        found = None
    return found[1] if found else "0"


def _git(root: Path, *arguments: str) -> str:
    """Output of git; nothing where there is no git, no repository or no commit."""
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True)
    except (subprocess.CalledProcessError, OSError):
        return ""
    return ran.stdout.decode(errors="replace").strip()
