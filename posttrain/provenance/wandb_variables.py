"""Names the pipeline that a stage's W&B run belongs to, in wandb's own variables."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from posttrain.provenance.code_version import Version, read_version

_NAMES = ("WANDB_RUN_GROUP", "WANDB_TAGS", "WANDB_GIT_COMMIT")
_MAX_TAG_CHARS, _MAX_NAME_CHARS = 64, 90  # W&B refuses longer tags, and groups of more than 128


def wandb_variables(
    root: Path, environment: Mapping[str, str] | None = None, version: Version | None = None
) -> dict[str, str]:
    """Of the tree at `root`: `WANDB_RUN_GROUP` is experiment, seed and commit (`base-seed1-4cb9056`
    of the branch exp/base-seed1, `main-seed1-4cb9056` of main), `WANDB_TAGS` branch and commit,
    `WANDB_GIT_COMMIT` the whole of it.

    `version` is the tree's where it was read already. What the environment says already stays as it
    is.
    """
    given = os.environ if environment is None else environment
    version = read_version(root) if version is None else version
    seed = _seed(root)
    if not version.commit:
        found = {"WANDB_RUN_GROUP": f"no-git-seed{seed}"}
    else:
        experiment = version.branch.removeprefix("exp/").removesuffix(f"-seed{seed}")
        found = {
            "WANDB_RUN_GROUP": f"{experiment[:_MAX_NAME_CHARS]}-seed{seed}-{version.short}",
            "WANDB_TAGS": f"{version.branch.replace(',', '-')[:_MAX_TAG_CHARS]},{version.short}",
            "WANDB_GIT_COMMIT": version.commit,
        }
    return {name: value for name in _NAMES if (value := given.get(name) or found.get(name))}


def _seed(root: Path) -> str:
    try:
        found = re.search(r"^seed: *(\d+)", (root / "params.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):  # whoever reads the knobs says what is wrong with them
        found = None
    return found[1] if found else "0"
