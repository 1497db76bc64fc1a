"""Names the pipeline that a stage's W&B run belongs to, in wandb's own variables.

Git is asked where the person's tree lies, because a snapshot or a pod has none.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

_NAMES = ("WANDB_RUN_GROUP", "WANDB_TAGS", "WANDB_GIT_COMMIT")
_WRITTEN = ("dvc.lock", "data", "reports", "**/.gitignore")  # by the pipeline itself, while it runs
_MAX_TAG_CHARS, _MAX_NAME_CHARS = 64, 90  # W&B refuses longer tags, and groups of more than 128


def wandb_variables(root: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of the tree at `root`: `WANDB_RUN_GROUP` is experiment, seed and commit (`base-seed1-4cb9056`
    of the branch exp/base-seed1, `main-seed1-4cb9056` of main), `WANDB_TAGS` branch and commit,
    `WANDB_GIT_COMMIT` the whole of it.

    Where code or knobs differ from the commit, a digest of the difference follows:
    `4cb9056+1a2b3c`. What the environment says already stays as it is.
    """
    given = os.environ if environment is None else environment
    seed = _seed(root)
    commit, _, branch = _git(root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").partition("\n")
    if not commit:
        found = {"WANDB_RUN_GROUP": f"no-git-seed{seed}"}
    else:
        edits = _git(root, "diff", "HEAD", "--", ".", *(f":(exclude,glob){path}" for path in _WRITTEN))
        version = commit[:7] + (f"+{hashlib.sha256(edits.encode()).hexdigest()[:6]}" if edits else "")
        experiment = branch.removeprefix("exp/").removesuffix(f"-seed{seed}")
        found = {
            "WANDB_RUN_GROUP": f"{experiment[:_MAX_NAME_CHARS]}-seed{seed}-{version}",
            "WANDB_TAGS": f"{branch.replace(',', '-')[:_MAX_TAG_CHARS]},{version}",
            "WANDB_GIT_COMMIT": commit,
        }
    return {name: value for name in _NAMES if (value := given.get(name) or found.get(name))}


def _seed(root: Path) -> str:
    try:
        found = re.search(r"^seed: *(\d+)", (root / "params.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):  # whoever reads the knobs says what is wrong with them
        found = None
    return found[1] if found else "0"


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
