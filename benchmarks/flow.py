"""Measures what the flow costs over plain DVC: seconds to recognise an up-to-date graph, with
`--whole` or `--small` every stage through both.

A server is started for it on loopback, with a database of its own, and is up before the clock runs.
The up-to-date graph is this checkout's, which `dvc repro` must have brought up to date; `dvc
status` on the same tree stands beside it. `--whole` (40 to 60 minutes) and `--small` (8) run
everything from nothing in two fresh clones, twice, the second time in the other order, and look at
the up-to-date graph there.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arms import REPOSITORY, SMALL, apply_overrides, clone_checkout, environment_of
from flows.server import client_environment, listen, new_secret, start_server, wait_for_server
from posttrain.runtime.state import STATE_DIR

NUM_TIMES, NUM_TURNS = 3, 2
START_LIMIT_S = 180.0
FLOW = [sys.executable, "-m", "flows.train_and_evaluate"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--whole", action="store_true", help="the default pipeline too, through `dvc repro` and through the flow"
    )
    parser.add_argument(
        "--small", action="store_true", help="the same with the tests' knobs: what the flow adds is the same"
    )
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="posttrain-bench-") as folder,
        running_server(Path(folder) / "prefect") as server,
    ):
        tree = REPOSITORY
        for is_given, overrides in ((given.whole, {}), (given.small, SMALL)):
            if is_given:
                tree = compare(Path(folder), server, overrides)
        if subprocess.run(["dvc", "status", "--quiet"], cwd=tree, env=environment_of(tree), check=False).returncode:
            raise SystemExit("this checkout is not up to date: run `dvc repro` first, or name --whole or --small")
        recognised_s = [seconds_of(FLOW, tree, {**environment_of(tree), **server}) for _ in range(NUM_TIMES)]
        status_s = [seconds_of(["dvc", "status", "--quiet"], tree, environment_of(tree)) for _ in range(NUM_TIMES)]
        print(
            f"an up-to-date graph, median of {NUM_TIMES}: flow {median(recognised_s)}, dvc status {median(status_s)}",
            flush=True,
        )


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of every stage. `stages_s` is the seconds of the stages by their own clock, added
    up."""

    seconds: float
    stages_s: float

    @property
    def others_s(self) -> float:
        """What was not a stage. Negative where stages ran beside each other."""
        return self.seconds - self.stages_s

    @staticmethod
    def mean(arms: Sequence["Arm"]) -> "Arm":
        """Of one kind of run."""
        return Arm(statistics.mean(arm.seconds for arm in arms), statistics.mean(arm.stages_s for arm in arms))


def compare(folder: Path, server: Mapping[str, str], overrides: Mapping[str, Any]) -> Path:
    """Both runs `NUM_TURNS` times in turns; gives a tree that the flow made.

    The stages' own seconds stand apart: they are the machine's at the moment, and what a flow adds
    to them is small beside how they vary.
    """
    plain, through = folder / "plain", folder / "through"
    arms: dict[Path, list[Arm]] = {plain: [], through: []}
    for turn in range(NUM_TURNS):
        for tree in (plain, through) if turn % 2 == 0 else (through, plain):
            clone_checkout(tree)
            apply_overrides(tree / "params.yaml", overrides)
            forget_results(tree)
            arms[tree].append(run_by_dvc(tree) if tree == plain else run_by_flow(tree, server))
            print(
                f"{'dvc repro' if tree == plain else 'the flow'}: {arms[tree][-1].seconds:.0f} s, "
                f"stages {arms[tree][-1].stages_s:.0f}",
                flush=True,
            )
        are_equal = (plain / "dvc.lock").read_bytes() == (through / "dvc.lock").read_bytes()
        print(f"dvc.lock: {'equal byte for byte' if are_equal else 'NOT equal'}", flush=True)
    by_dvc, by_flow = Arm.mean(arms[plain]), Arm.mean(arms[through])
    more_s = by_flow.others_s - by_dvc.others_s
    print(
        f"the flow takes {by_flow.seconds / by_dvc.seconds:.3f} times as long, means of {NUM_TURNS}; "
        "with the same stages "
        f"{1 + more_s / by_dvc.seconds:.3f}, {more_s:.0f} s more",
        flush=True,
    )
    return through


def run_by_dvc(tree: Path) -> Arm:
    """`dvc repro`."""
    seconds = seconds_of(["dvc", "repro"], tree, environment_of(tree))
    costs = (tree / STATE_DIR / "costs.jsonl").read_text(encoding="utf-8").splitlines()
    return Arm(seconds, sum(json.loads(line)["seconds"] for line in costs))


def run_by_flow(tree: Path, server: Mapping[str, str]) -> Arm:
    """The flow `train_and_evaluate`."""
    seconds = seconds_of(FLOW, tree, {**environment_of(tree), **server})
    logs = [log.read_text(encoding="utf-8") for log in (tree / STATE_DIR / "logs").glob("*.log")]
    return Arm(
        seconds, sum(float(one) for log in logs for one in re.findall(r"^\[.*\] done in ([\d.]+) s", log, re.MULTILINE))
    )


def forget_results(copy: Path) -> None:
    """Without its lock DVC runs every stage."""
    (copy / "dvc.lock").unlink()


def seconds_of(command: list[str], folder: Path, environment: Mapping[str, str]) -> float:
    """Of a command that must succeed."""
    started_s = time.monotonic()
    subprocess.run(
        command, cwd=folder, env=dict(environment), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.monotonic() - started_s


def median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} … {max(seconds):.1f})"


@contextlib.contextmanager
def running_server(home: Path) -> Iterator[dict[str, str]]:
    """The environment that names it. Raises Interrupted where it does not answer in three
    minutes."""
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
