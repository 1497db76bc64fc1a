"""A real server of a model as a process of one's own: started, waited for, measured, and ended with
the program that started it. vLLM's is infra/vllm/serve.sh's."""

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
VLLM = REPOSITORY / "infra" / "vllm"


class ServerProcess:
    """A server on a port of the loopback interface. It may be killed and started again; `close`
    leaves no process and no file."""

    def __init__(self, command: Sequence[str], port: int, scratch: Path, **settings: str) -> None:
        """`command` serves at `port`, from the repository's root; `scratch` takes the log;
        `settings` are environment."""
        self.url = f"http://127.0.0.1:{port}"
        # Linux tells the server to end when this process is gone, however it went.
        self._command = ["setpriv", "--pdeathsig", "TERM", *command]
        # Not PYTHONPATH: the server's environment has other packages. Its temporary files under
        # ours, where `kill -9` leaves them.
        self._environment = (
            {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            | {"TMPDIR": str(scratch)}
            | settings
        )
        self._log = scratch / f"{port}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("a") as log:
            # A session of its own: a server is several processes, which `kill` takes together.
            self._process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def wait(self, timeout_s: float = 240) -> None:
        """Until it answers."""
        end = time.monotonic() + timeout_s
        while not self.is_up():
            assert self._process.poll() is None, (
                f"the server ended with {self._process.returncode}:\n{self._log.read_text()[-3000:]}"
            )
            assert time.monotonic() < end, f"the server is not up after {timeout_s} s:\n{self._log.read_text()[-3000:]}"
            time.sleep(1)

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def post(self, path: str) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.url}{path}", method="POST"), timeout=60).close()

    def kill(self) -> None:
        """Kill it at once, like a machine that loses its power."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self, timeout_s: float = 60) -> None:
        """Ends it in order; one that does not end is killed."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()


class VllmProcess(ServerProcess):
    """vLLM's."""

    def __init__(self, folder: Path, port: int, scratch: Path, *, flags: tuple[str, ...] = (), **settings: str) -> None:
        """`folder` is a model's as `write_served_folder` makes it; `settings` are what serve.sh
        reads."""
        super().__init__([str(VLLM / "serve.sh"), str(folder), str(port), *flags], port, scratch, **settings)
