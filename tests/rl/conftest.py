"""The tiny model and its runs (tests/algorithms) are imported by name."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "algorithms"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
