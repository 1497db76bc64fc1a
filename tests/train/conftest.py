"""The helper modules of this folder (`tiny`, `tiny_runs`) are imported by name, also by the
processes that the tests start."""

import os
import sys
from pathlib import Path

import pytest
import torch

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
