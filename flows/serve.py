"""A Prefect server with our deployments and a worker for them, on this machine only, as one process that leaves none behind.

`make serve`, or `python -m flows.serve` in the repository. Everything listens on loopback; runs and their logs lie in `.posttrain/prefect`. Ctrl-C or
SIGTERM ends the worker first, so that its runs cancel their jobs while there is a server to tell.
"""

import argparse
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

import psutil

from posttrain.dispatch.processes import kill_tree
from posttrain.exits import ConfigurationError, Interrupted, exit_codes
from posttrain.state import STATE_DIR

HOME = STATE_DIR / "prefect"
POOL = "posttrain-process"
_START_PATIENCE_S = 180.0  # the first start migrates a database
_RUN_PATIENCE_S = 30.0  # of a run whose jobs are to be cancelled first
_END_PATIENCE_S = 45.0
_LOOK_S = 0.3


def serve(root: Path, port: int) -> None:
    """Returns after SIGINT or SIGTERM. Raises ConfigurationError where this tree is served already, Interrupted where a part of it ended or did not
    start."""
    home = root / HOME
    home.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"{url}/api",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
    }
    environment.pop("POSTTRAIN_ROOT", None)  # while deploying: it is the worker's, and would be written into the deployments
    with contextlib.ExitStack() as ends:
        ends.enter_context(_only_one(home / "serve.lock"))
        _check_port(port)
        server = ends.enter_context(_running("server", home, environment, "server", "start", "--host", "127.0.0.1", "--port", str(port)))
        _wait_until_healthy(url, server, home)
        _deploy(home, environment)
        start = ("worker", "start", "--pool", POOL, "--type", "process")
        worker = ends.enter_context(_running("worker", home, {**environment, "POSTTRAIN_ROOT": str(root)}, *start))
        ends.callback(_end_runs, worker)
        print(f"\n{url}  (logs in {home.relative_to(root)}; Ctrl-C ends it)\n\n  export PREFECT_API_URL={url}/api", flush=True)
        print("  prefect deployment run train-and-evaluate/process\n", flush=True)
        while True:
            for name, process in (("server", server), ("worker", worker)):
                if process.poll() is not None:
                    raise Interrupted(f"the {name} has ended with {process.returncode}; {home / name}.log says why")
            time.sleep(_LOOK_S)


def main() -> None:
    parser = argparse.ArgumentParser("flows.serve", description="A Prefect server and a worker on this machine.")
    parser.add_argument("--port", type=int, default=4200, help="of the server, on 127.0.0.1")
    port = parser.parse_args().port

    def leave(number: int, _: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)  # the end takes a while, and a second Ctrl-C would leave a part of it alive
        raise SystemExit(0 if number == signal.SIGINT else 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    with exit_codes():
        serve(Path.cwd(), port)


def _check_port(port: int) -> None:
    """Another server there would answer in place of ours, and get our deployments."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"port {port} of 127.0.0.1 cannot be had ({error}): end what has it, or name another (make serve SERVER_PORT=…)"
            ) from error


@contextlib.contextmanager
def _running(name: str, home: Path, environment: Mapping[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of Prefect's with a log of its own. At the end it is asked to leave, and killed with all it started where it has not."""
    with (home / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C would reach all at once
        )
    try:
        yield process
    finally:
        print(f"ending the {name}", flush=True)
        process.terminate()
        try:
            process.wait(_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            process.wait()


def _end_runs(worker: subprocess.Popen[bytes]) -> None:
    """Before the worker: it kills its runs at once, and the jobs of a run that was killed live on. One that is asked cancels them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        runs = psutil.Process(worker.pid).children()
        for run in runs:
            run.terminate()
        if runs:
            print(f"ending {len(runs)} of its runs", flush=True)
        psutil.wait_procs(runs, timeout=_RUN_PATIENCE_S)


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes], home: Path) -> None:
    deadline = time.monotonic() + _START_PATIENCE_S
    print(f"starting the server at {url}", flush=True)
    while True:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/api/health", timeout=5):  # noqa: S310 our own
            if server.poll() is None:
                return
        if server.poll() is not None or time.monotonic() > deadline:
            why = f"ended with {server.returncode}" if server.poll() is not None else f"does not answer after {_START_PATIENCE_S:g} s"
            raise Interrupted(f"the server {why}: {home / 'server.log'} says more")
        time.sleep(_LOOK_S)


def _deploy(home: Path, environment: Mapping[str, str]) -> None:
    with (home / "deploy.log").open("ab") as log:
        done = subprocess.run([sys.executable, "-m", "flows.deploy"], env=dict(environment), stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise Interrupted(f"the deployments are not on the server; {home / 'deploy.log'} says why")


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(f"this tree is served already ({path}): end that `make serve` first, or use its URL") from error
        yield


if __name__ == "__main__":
    main()
