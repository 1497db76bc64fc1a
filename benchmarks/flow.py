"""Times how long the flow takes to recognise an up-to-date graph, beside `dvc status`.

The graph is this checkout's, which `dvc repro` must have brought up to date. A Prefect server is
started for it on loopback, with a database of its own, and is up before the clock runs.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.arms import REPOSITORY, environment_of
from flows.server import client_environment, listen, new_secret, start_server, wait_for_server

NUM_TIMES = 3
START_LIMIT_S = 180.0
FLOW = [sys.executable, "-m", "flows.train_and_evaluate"]
STATUS = ["dvc", "status", "--quiet"]


def main() -> None:
    environment = environment_of(REPOSITORY)
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as folder, running_server(Path(folder)) as server:
        if subprocess.run(STATUS, cwd=REPOSITORY, env=environment, check=False).returncode:
            raise SystemExit("this checkout is not up to date: run `dvc repro` first")
        recognised_s = [seconds_of(FLOW, {**environment, **server}) for _ in range(NUM_TIMES)]
        status_s = [seconds_of(STATUS, environment) for _ in range(NUM_TIMES)]
    print(f"an up-to-date graph, median of {NUM_TIMES}: flow {median(recognised_s)}, dvc status {median(status_s)}")


def seconds_of(command: list[str], environment: Mapping[str, str]) -> float:
    """Seconds of a command, which must succeed."""
    started_s = time.monotonic()
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=REPOSITORY, env=dict(environment), check=True, stdout=quiet, stderr=quiet)
    return time.monotonic() - started_s


def median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} … {max(seconds):.1f})"


@contextlib.contextmanager
def running_server(home: Path) -> Iterator[dict[str, str]]:
    """Start a server; yields the environment that names it. Raises Interrupted where it does not
    answer in three minutes."""
    listening, secret = listen(0), new_secret()
    port = listening.getsockname()[1]
    named = {"PREFECT_HOME": str(home), "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    server = start_server(listening, secret, {**os.environ, **named}, is_temporary=False)
    try:
        wait_for_server(server, port, patience_s=START_LIMIT_S)
        yield {**named, **client_environment(port, secret)}
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


if __name__ == "__main__":
    main()
