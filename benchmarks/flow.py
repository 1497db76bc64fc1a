"""What does the flow cost over plain DVC? Seconds to recognise an up-to-date graph, and with `--whole` the default pipeline through both.

A server is started for it on loopback, with a database of its own, and is up before the clock runs. The up-to-date graph is this checkout's, which
`dvc repro` must have brought up to date; `dvc status` on the same tree stands beside it. `--whole` runs everything, forced, in two fresh clones, one
after the other (20 minutes).
"""

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.arms import REPOSITORY, clone_checkout, environment_of

NUM_TIMES = 3
START_LIMIT_S = 180.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--whole", action="store_true", help="the whole default pipeline too, through the flow and through `dvc repro`")
    is_whole = parser.parse_args().whole
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as folder, running_server(Path(folder) / "prefect") as server:
        flow = [sys.executable, "-m", "flows.train_and_evaluate"]
        recognised_s = [seconds_of(flow, REPOSITORY, {**environment_of(REPOSITORY), **server}) for _ in range(NUM_TIMES)]
        status_s = [seconds_of(["dvc", "status", "--quiet"], REPOSITORY, environment_of(REPOSITORY)) for _ in range(NUM_TIMES)]
        print(f"an up-to-date graph, median of {NUM_TIMES}: flow {median(recognised_s)}, dvc status {median(status_s)}", flush=True)
        if is_whole:
            plain = clone_checkout(Path(folder) / "plain")
            plain_s = seconds_of(["dvc", "repro", "--force"], plain, environment_of(plain))
            through = clone_checkout(Path(folder) / "through")
            forget_results(through)
            flow_s = seconds_of(flow, through, {**environment_of(through), **server})
            print(f"the default pipeline from nothing: flow {flow_s:.0f} s, dvc repro {plain_s:.0f} s, ratio {flow_s / plain_s:.3f}", flush=True)


def forget_results(copy: Path) -> None:
    """What `--force` is to `dvc repro`: without its lock DVC runs every stage."""
    (copy / "dvc.lock").unlink()


def seconds_of(command: list[str], folder: Path, environment: Mapping[str, str]) -> float:
    """Of a command that must succeed."""
    started_s = time.monotonic()
    subprocess.run(command, cwd=folder, env=dict(environment), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started_s


def median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} … {max(seconds):.1f})"


@contextlib.contextmanager
def running_server(home: Path) -> Iterator[dict[str, str]]:
    """The environment that names it. Raises TimeoutError where it does not answer in three minutes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    named = {"PREFECT_HOME": str(home), "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, env={**os.environ, **named}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not answers(f"http://127.0.0.1:{port}/api/health"):
            if time.monotonic() > deadline or server.poll() is not None:
                raise TimeoutError(f"the server on port {port} does not answer; it has {server.poll()} as its exit code")
            time.sleep(0.5)
        yield {**named, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
