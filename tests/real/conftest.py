"""What the suites of real components share: the SFT model of the last `dvc repro`, and processes that are ended with their tests."""

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from posttrain.models.loading import load_model
from posttrain.rollout.engines.weight_files import write_served_folder

REPOSITORY = Path(__file__).resolve().parents[2]
SFT = REPOSITORY / "data" / "models" / "sft"


class Server:
    """One vLLM server on a port of the loopback interface; it may be killed and started again."""

    def __init__(self, folder: Path, port: int, log: Path, **settings: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder, self._port, self._log, self._settings = folder, port, log, settings
        self.start()

    def start(self) -> None:
        command = [str(REPOSITORY / "infra/vllm/serve.sh"), str(self._folder), str(self._port)]
        # A group of its own: a server is several processes. Not the tests' PYTHONPATH: its environment has other packages.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | self._settings
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)

    def wait(self, timeout_s: float = 240) -> None:
        end = time.monotonic() + timeout_s
        while not self.is_up():
            assert self._process.poll() is None, f"the server ended with {self._process.returncode}:\n{self._log.read_text()[-3000:]}"
            assert time.monotonic() < end, f"the server is not up after {timeout_s} s:\n{self._log.read_text()[-3000:]}"
            time.sleep(1)

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal_number)
            self._process.wait(60)


@pytest.fixture(scope="session")
def sft() -> Path:
    if not list(SFT.glob("*.safetensors")):
        pytest.fail(f"{SFT} is empty: run `dvc repro train_sft` first, as `make test-vllm` does")
    return SFT


@pytest.fixture(scope="session")
def served(sft: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("served")
    write_served_folder(sft, load_model(sft, dtype="float32"), folder)
    return folder


@pytest.fixture(scope="session")
def servers(served: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    logs = tmp_path_factory.mktemp("logs")
    started = [Server(served, port, logs / f"{port}.log") for port in (8611, 8612)]
    try:
        for server in started:
            server.wait()
        yield started
    finally:
        for server in started:
            server.kill(signal.SIGTERM)
