"""Fixtures of vLLM's suite: the experiment, and servers that end with their suite.

The experiment is on the SFT model of the last `dvc repro`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch

from benchmarks.vllm_process import REPOSITORY, VllmProcess
from posttrain.rollout.engines.weight_files import write_served_folder
from tests.real.experiment import Experiment

SFT = REPOSITORY / "data" / "models" / "sft"


@pytest.fixture(scope="session")
def experiment() -> Experiment:
    if not list(SFT.glob("*.safetensors")):
        pytest.fail(f"{SFT} is empty: run `dvc repro train_sft` first, as `make test NEEDS=vllm` does")
    torch.set_num_threads(1)  # the servers compute beside
    return Experiment(SFT)


@pytest.fixture(scope="session")
def served(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write_served_folder(SFT, experiment.model(), folder)
    return folder


@pytest.fixture(scope="module")
def serve(served: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[VllmProcess]]]:
    """`serve(port, …, NAME=setting)` starts a server on each port and waits for them."""
    with ExitStack() as started:

        def start(*ports: int, **settings: str) -> list[VllmProcess]:
            scratch = tmp_path_factory.mktemp("vllm")
            servers = [started.enter_context(closing(VllmProcess(served, port, scratch, **settings))) for port in ports]
            for server in servers:
                server.wait()
            return servers

        yield start


@pytest.fixture
def _play_by_vllm(monkeypatch: pytest.MonkeyPatch, servers: list[VllmProcess], tmp_path: Path) -> None:
    """Each module of vLLM's uses it and names its `servers`."""
    monkeypatch.setenv("POSTTRAIN_ENGINE", "vllm")
    monkeypatch.setenv("POSTTRAIN_VLLM_URLS", ",".join(server.url for server in servers))
    monkeypatch.setenv("POSTTRAIN_VLLM_FOLDER", str(tmp_path / "weights"))
