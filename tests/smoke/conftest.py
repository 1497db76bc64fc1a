"""A copy of the checkout as it is now, with knobs so small that the whole graph runs in a minute."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arms import SMALL, apply_overrides, environment_of


@pytest.fixture(scope="session")
def make_copy(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_copy(overrides)` gives a committed copy of the working tree, tiny knobs first, then `overrides`."""

    def copy(overrides: Mapping[str, Any] | None = None) -> Path:
        root = tmp_path_factory.mktemp("pipeline")
        listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=repository, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            source, target = repository / name, root / name
            if source.is_file() and name != "dvc.lock" and (not name.startswith("reports/") or name == "reports/seeds.json"):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        apply_overrides(root / "params.yaml", {**SMALL, **(overrides or {})})
        git = ["git", "-c", "user.name=smoke", "-c", "user.email=smoke@localhost"]
        for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "copy"]):
            subprocess.run([*git, *command], cwd=root, check=True)
        return root

    return copy


@pytest.fixture(scope="session")
def dvc() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`dvc(root, "repro", …)` runs dvc there as a person would, with the copy's own code first on the path."""

    def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**environment_of(root), "WANDB_MODE": "disabled"}
        return subprocess.run(["dvc", *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False)

    return run
