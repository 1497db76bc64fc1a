import os
import subprocess
from pathlib import Path

import pytest

from posttrain.config.params import load_params
from posttrain.provenance.code_version import wandb_variables
from posttrain.provenance.runner import StageRun


@pytest.fixture
def tree(tmp_path, monkeypatch, repository):
    """A git repository on the branch `trial` with one commit, as the working directory; nothing in
    the environment says a thing to wandb."""
    for name in ("MODE", "DIR", "DATA_DIR", "RUN_GROUP", "TAGS", "GIT_COMMIT", "PROJECT", "API_KEY", "BASE_URL"):
        monkeypatch.setenv(f"WANDB_{name}", "")  # so that what is set meanwhile is undone
        monkeypatch.delenv(f"WANDB_{name}")
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes((repository / "params.yaml").read_bytes())
    Path(".gitignore").write_text("/.posttrain/\n")
    for command in (
        ["init", "--quiet", "--initial-branch", "trial"],
        ["add", "--all"],
        ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--message", "start"],
    ):
        subprocess.run(["git", *command], check=True)
    return tmp_path


@pytest.fixture
def stage(tree):
    """`stage("train_sft")` is the argument of that stage's function; W&B's variables are set as the
    runner sets them."""

    def run(name: str, item: str = "") -> StageRun:
        os.environ.update(wandb_variables(tree))
        return StageRun(name, item, load_params(), tree / ".posttrain" / "checkpoints" / name / "0123456789abcdef")

    return run
