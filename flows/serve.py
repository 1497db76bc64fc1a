"""A Prefect server with our deployments and a worker for them, on this machine only, as one process
that leaves none behind.

`make serve`, or `python -m flows.serve` in the repository. Everything listens on loopback and needs
the secret in `.posttrain/prefect/auth`; runs and their logs lie there, too. Ctrl-C or SIGTERM ends
the worker first, so that its runs cancel their jobs while the server still answers.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from flows.server import LOOPBACK, client_environment, listen, new_secret, start_server, wait_for_server
from posttrain.dispatch.processes import kill_tree
from posttrain.provenance.environment import path_with_python
from posttrain.runtime.exits import ConfigurationError, Interrupted, exit_codes
from posttrain.runtime.locks import held_if_free
from posttrain.runtime.state import STATE_DIR, private

HOME = STATE_DIR / "prefect"
SECRET = "auth"
POOL = "posttrain-process"
_START_PATIENCE_S = 180.0  # the first start migrates a database
_RUN_PATIENCE_S = 30.0  # of a run whose jobs are to be cancelled first
_END_PATIENCE_S = 45.0
_LOOK_S = 0.3
_INSTRUCTIONS = """
{url}  (logs in {home}; Ctrl-C ends it)

  export PREFECT_API_URL={url}/api
  export PREFECT_API_AUTH_STRING="$(cat {secret})"
  prefect deployment run train-and-evaluate/process

Its pages ask once for what is in {secret}. Who has that may run commands as you: give it to nobody.
"""


def serve(root: Path, port: int) -> None:
    """Returns after SIGINT or SIGTERM. Raises ConfigurationError where this tree is served already,
    Interrupted where a part of it ended or did not start."""
    home = root / HOME
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home.chmod(0o700)
    url = f"http://{LOOPBACK}:{port}"
    with contextlib.ExitStack() as ends:
        if not ends.enter_context(held_if_free(home / "serve.lock")):
            raise ConfigurationError(
                f"this tree is served already ({home / 'serve.lock'}): end that `make serve` first, or use its URL"
            )
        listening = listen(port)
        secret = read_secret(home / SECRET)
        environment = {
            **os.environ,
            **client_environment(port, secret),
            "PREFECT_HOME": str(home),
            "PATH": path_with_python(),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
        }
        environment.pop("POSTTRAIN_ROOT", None)  # the worker's: it would be written into the deployments
        with _log(home, "server") as log:
            server = start_server(listening, secret, environment, is_temporary=False, output=log)
        ends.enter_context(_ended("server", server))
        print(f"starting the server at {url}", flush=True)
        wait_for_server(server, port, patience_s=_START_PATIENCE_S, log=home / "server.log")
        _deploy(home, environment)
        worker = _worker(home, {**environment, "POSTTRAIN_ROOT": str(root)})
        ends.enter_context(_ended("worker", worker))
        ends.callback(_end_runs, worker)
        print(_INSTRUCTIONS.format(url=url, home=home.relative_to(root), secret=HOME / SECRET), flush=True)
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
            signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C would leave a part of it alive
        raise SystemExit(0 if number == signal.SIGINT else 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    with exit_codes():
        serve(Path.cwd(), port)


def read_secret(path: Path) -> str:
    """The secret that a client must know; made, for this user alone, where there is none.

    It is kept from one server of the tree to the next, so that shells, browsers and workers that
    have it go on: it lies beside all that it guards. Who removes the file gets a new one. One that
    others could read is a secret no more, and is made anew, too.
    """
    with contextlib.suppress(FileNotFoundError), path.open(encoding="ascii") as file:
        stat = os.fstat(file.fileno())
        is_private = not path.is_symlink() and stat.st_uid == os.geteuid() and not stat.st_mode & 0o077
        if is_private and (secret := file.read().strip()):
            return secret
    path.unlink(missing_ok=True)
    secret = new_secret()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
        file.write(secret)
    return secret


def _worker(home: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    worker = f"prefect worker start --pool {POOL} --type process".split()
    with _log(home, "worker") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.die_with_parent", str(os.getpid()), *worker],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C would reach all at once
        )


@contextlib.contextmanager
def _ended(name: str, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate the process at the end, and kill it with all it started where it does not end."""
    try:
        yield
    finally:
        print(f"ending the {name}", flush=True)
        process.terminate()
        try:
            process.wait(_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            process.wait()


def _log(home: Path, name: str) -> IO[bytes]:
    """To append to, this user's from its first moment."""
    return open(home / f"{name}.log", "ab", opener=private)


def _end_runs(worker: subprocess.Popen[bytes]) -> None:
    """Terminate the worker's runs, each of which then cancels its jobs. The worker would kill its
    runs, and the jobs of a killed run live on."""
    with contextlib.suppress(psutil.NoSuchProcess):
        runs = psutil.Process(worker.pid).children()
        for run in runs:
            run.terminate()
        if runs:
            print(f"ending {len(runs)} of its runs", flush=True)
        psutil.wait_procs(runs, timeout=_RUN_PATIENCE_S)


def _deploy(home: Path, environment: Mapping[str, str]) -> None:
    with _log(home, "deploy") as log:
        command = [sys.executable, "-m", "flows.deploy"]
        done = subprocess.run(
            command, env=dict(environment), stdout=log, stderr=subprocess.STDOUT, check=False, umask=0o077
        )
    if done.returncode:
        raise Interrupted(f"the deployments are not on the server; {home / 'deploy.log'} says why")


if __name__ == "__main__":
    main()
