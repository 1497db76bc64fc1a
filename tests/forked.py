"""Fork server of the test session: runs functions and `python -m` programs in processes that have
every import of the tests already.

Importing torch, transformers and TRL takes five seconds, DVC one. The server forks from pytest when
the tests are collected and none has run, so it has no threads whose locks a child could inherit.
"""

import importlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

_FORK = multiprocessing.get_context("fork")
_server: Connection | None = None
_one_at_a_time = threading.Lock()


def start_server() -> None:
    """Called once, by conftest.py."""
    global _server  # noqa: PLW0603  # one for the session
    if _server is None:
        ours, theirs = multiprocessing.Pipe()
        if os.fork() == 0:
            ours.close()
            _serve(theirs)
        theirs.close()
        _server = ours


def call(function: Callable[..., object], *arguments: Any) -> int:
    """Runs `function(*arguments)` in a process of its own and returns its exit code, which is below
    0 for the signal that killed it. Both must be picklable."""
    assert _server is not None, "tests/conftest.py starts the server when the tests are collected"
    with _one_at_a_time:
        _server.send((function, arguments))
        code: int = _server.recv()
    return code


def preload(module: str) -> None:
    """Imports a module into the server, which no test has imported when it starts."""
    call(importlib.import_module, module)


def python(
    program: str, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python FILE.py ARGUMENTS`, or `python -m MODULE ARGUMENTS`, with its output.

    The library is the one that the tests import, whatever `env` says of paths. DVC's tables and
    JSON are not in the output: they go to the `sys.stdout` that was there when DVC was imported.
    """
    with TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        variables = dict(os.environ if env is None else env)
        code = call(_run, program, arguments, Path(cwd or Path.cwd()), variables, files)
        return subprocess.CompletedProcess([program, *arguments], code, *(file.read_text() for file in files))


def _run(program: str, arguments: tuple[str, ...], cwd: Path, env: dict[str, str], files: list[Path]) -> None:
    for descriptors, file in zip(((1, sys.stdout.fileno()), (2, sys.stderr.fileno())), files, strict=True):
        for descriptor in descriptors:
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(cwd))
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def _serve(requests: Connection) -> NoReturn:
    """Until the tests are over. Standard input stays with the tests: xdist talks through it."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        while True:
            function, arguments = requests.recv()
            if function is importlib.import_module:
                function(*arguments)
                requests.send(0)
                continue
            process = _FORK.Process(target=function, args=arguments)
            process.start()
            process.join()
            requests.send(process.exitcode)
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
