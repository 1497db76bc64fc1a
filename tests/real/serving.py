"""`make serve` in a toy tree, and what a person asks it."""

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.pipeline.toy import ask, calls, environment_of, jobs, make_tree, start
from tests.waiting import wait_until

RUN_S = 300


@dataclass
class Served:
    root: Path
    environment: dict[str, str]
    process: subprocess.Popen[str]
    processes: list[psutil.Process]
    said: str  # in the terminal

    @property
    def secret(self) -> str:
        return self.environment["PREFECT_API_AUTH_STRING"]

    @property
    def home(self) -> Path:
        return self.root / ".posttrain" / "prefect"

    def ask(self, path: str, content: Any = None) -> Any:
        return ask(self.environment["PREFECT_API_URL"], path, content, auth=self.secret)

    def prefect(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "prefect", *arguments]
        return subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def start_run(self, *deployment: str) -> str:
        """The id of a new run that the worker picks up."""
        said = self.prefect("deployment", "run", *(deployment or ("train-and-evaluate/process",)))
        return re.search(r"UUID: ([0-9a-f-]{36})", said)[1]

    def state(self, run: str) -> str:
        return self.ask(f"flow_runs/{run}")["state"]["name"]

    def training(self, num_before: int) -> dict[str, Any]:
        """The job of `train`, once its command runs."""
        wait_until(lambda: calls(self.root).count("train") > num_before, limit_s=RUN_S, what="the training")
        return jobs(self.root, "train")[-1]


@contextlib.contextmanager
def serving(folder: Path, repository: Path) -> Iterator[Served]:
    """In `folder`/tree, which is made where it is not there, on a port of its own."""
    root = folder / "tree" if (folder / "tree").exists() else make_tree(folder, repository)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    environment = environment_of(repository, PREFECT_HOME=str(root / ".posttrain" / "prefect"), PREFECT_API_URL=url)
    (folder / "tmp").mkdir(exist_ok=True)
    environment |= {"A_KEY": "not-to-be-written-down", "TMPDIR": str(folder / "tmp")}
    process = start(root, environment, "flows.serve", "--port", str(port))
    said = ""
    while "give it to nobody" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    environment["PREFECT_API_AUTH_STRING"] = (root / ".posttrain" / "prefect" / "auth").read_text()
    yield Served(root, environment, process, psutil.Process(process.pid).children(recursive=True), said)
    if process.poll() is None:
        process.terminate()
        process.wait(120)
