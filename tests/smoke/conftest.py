"""A copy of the checkout as it is now, with knobs so small that the whole graph runs in a
minute."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.arms import environment_of, make_small_copy


@pytest.fixture(scope="session")
def make_copy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_copy(overrides)` gives a committed copy of the working tree, tiny knobs first, then
    `overrides`."""

    def copy(overrides: Mapping[str, Any] | None = None) -> Path:
        return make_small_copy(tmp_path_factory.mktemp("pipeline"), overrides)

    return copy


@pytest.fixture(scope="session")
def dvc() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`dvc(root, "repro", …)` runs dvc there as a person would, with the copy's own code first on
    the path."""

    def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**environment_of(root), "WANDB_MODE": "disabled"}
        return subprocess.run(
            ["dvc", *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
        )

    return run
