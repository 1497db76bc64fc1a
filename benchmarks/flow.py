"""What does the flow cost over plain DVC? Seconds to recognise an up-to-date graph, with `--whole` or `--small` every stage through both.

A server is started for it on loopback, with a database of its own, and is up before the clock runs. The up-to-date graph is this checkout's, which
`dvc repro` must have brought up to date; `dvc status` on the same tree stands beside it. `--whole` (20 to 30 minutes) and `--small` (15) run
everything from nothing in two fresh clones, one after the other, and look at the up-to-date graph there.
"""

import argparse
import contextlib
import json
import os
import re
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
from typing import Any

import yaml

from benchmarks.arms import REPOSITORY, SMALL, apply_overrides, clone_checkout, environment_of
from posttrain.state import STATE_DIR

NUM_TIMES = 3
START_LIMIT_S = 180.0
FLOW = [sys.executable, "-m", "flows.train_and_evaluate"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--whole", action="store_true", help="the default pipeline too, through `dvc repro` and through the flow")
    parser.add_argument("--small", action="store_true", help="the same with the tests' knobs, three times in turns: what the flow adds is the same")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="posttrain-bench-") as folder, running_server(Path(folder) / "prefect") as server:
        tree = REPOSITORY
        if given.whole:
            tree, _ = compare(Path(folder), server, {})
        if given.small:
            added_s = []
            for _ in range(NUM_TIMES):
                tree, more_s = compare(Path(folder), server, SMALL)
                added_s.append(more_s)
            print(f"what the flow adds to a run of every stage, median of {NUM_TIMES}: {median(added_s)}", flush=True)
        if subprocess.run(["dvc", "status", "--quiet"], cwd=tree, env=environment_of(tree), check=False).returncode:
            raise SystemExit("this checkout is not up to date: run `dvc repro` first, or name --whole or --small")
        recognised_s = [seconds_of(FLOW, tree, {**environment_of(tree), **server}) for _ in range(NUM_TIMES)]
        status_s = [seconds_of(["dvc", "status", "--quiet"], tree, environment_of(tree)) for _ in range(NUM_TIMES)]
        print(f"an up-to-date graph, median of {NUM_TIMES}: flow {median(recognised_s)}, dvc status {median(status_s)}", flush=True)


def compare(folder: Path, server: Mapping[str, str], overrides: Mapping[str, Any]) -> tuple[Path, float]:
    """The tree that the flow made, and the seconds that it took more than `dvc repro` besides those of the stages.

    The stages' own seconds stand apart: they are the machine's at the moment, and what a flow adds to them is small beside how they vary.
    """
    plain, through = (clone_checkout(folder / name) for name in ("plain", "through"))
    for copy in (plain, through):
        apply_overrides(copy / "params.yaml", overrides)
        forget_results(copy)
    plain_s = seconds_of(["dvc", "repro"], plain, environment_of(plain))
    costs = (plain / STATE_DIR / "costs.jsonl").read_text(encoding="utf-8").splitlines()
    plain_stages_s = sum(json.loads(line)["seconds"] for line in costs)
    flow_s = seconds_of(FLOW, through, {**environment_of(through), **server})
    logs = [log.read_text(encoding="utf-8") for log in (through / STATE_DIR / "logs").glob("*.log")]
    flow_stages_s = sum(float(seconds) for log in logs for seconds in re.findall(r"^\[.*\] done in ([\d.]+) s", log, re.MULTILINE))
    locks = [yaml.safe_load((copy / "dvc.lock").read_text(encoding="utf-8")) for copy in (plain, through)]
    more_s = (flow_s - flow_stages_s) - (plain_s - plain_stages_s)
    print(f"dvc repro {plain_s:.0f} s, of which stages {plain_stages_s:.0f}; flow {flow_s:.0f} s, of which stages {flow_stages_s:.0f}", flush=True)
    print(f"  ratio {flow_s / plain_s:.3f}, with the same stages {1 + more_s / plain_s:.3f}; {len(logs)} jobs", flush=True)
    print(f"  dvc.lock {'equal' if locks[0] == locks[1] else 'NOT equal'}, stage by stage", flush=True)
    return through, more_s


def forget_results(copy: Path) -> None:
    """Without its lock DVC runs every stage."""
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
