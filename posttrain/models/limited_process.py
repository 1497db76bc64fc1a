"""Runs a function in a forked child with limits on CPU time and memory, and reports each way it can
end as an error of one sentence.

Untrusted files may loop for ever, ask for all memory, or crash a native library, which no exception
handler survives. A fork takes milliseconds, where a new process imports transformers for seconds.
Forking a process with threads is safe, as in torch's data loaders, as long as the child computes in
one thread and ends by `_exit`.
"""

import faulthandler
import json
import os
import resource
import select
import signal
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import psutil
import torch

from posttrain.runtime.exits import ConfigurationError, StageError, as_error
from posttrain.runtime.limits import reason

MAX_CPU_S = 10  # a vocabulary of 256,000 pieces is read in 2
MAX_IDLE_S = 8  # without CPU time: a library may wait for itself after an allocation was refused
MAX_MEMORY = 1_200 * 2**20  # besides this process's own; a vocabulary of 256,000 pieces takes a quarter
_HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_REMEDY = "It was opened in a process of its own, so nothing else was harmed: mend the folder, or choose another model"

Say = Callable[[str], None]


def run_limited(work: Callable[[Say], None], *, subject: str, times: int = 1) -> None:
    """Run `work` in a child, with limits `times` as high as usual. `work` reports each step that it
    begins by calling its argument.

    Raises the StageError that `work` raises, and ConfigurationError, with `subject` and the step,
    where it raises anything else, uses up its time or memory, or dies.
    """
    reading, writing = os.pipe()  # the child writes a line of JSON per step and one at its end
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of forking with threads
        child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, writing, times)
    os.close(writing)
    try:
        lines = _lines(reading, psutil.Process(child))
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # it has reported its end, or will report none
        _, status = os.waitpid(child, 0)
    step = next((line["step"] for line in reversed(lines) if "step" in line), "the beginning")
    if not lines or "code" not in lines[-1]:
        raise ConfigurationError(f"{subject} cannot be used: {_death(step, status, times)}. {_REMEDY}")
    code, message = lines[-1]["code"], lines[-1]["message"]
    if code < 0:
        raise ConfigurationError(f"{subject} cannot be used: {step} cannot be read ({message}). {_REMEDY}")
    if error := as_error(code, message):
        raise error


def raise_memory(num_bytes: int) -> None:
    """Raise the limit of the calling child by so many bytes, for files that it maps."""
    _limit_memory(resource.getrlimit(resource.RLIMIT_DATA)[0] + num_bytes)


def _work(work: Callable[[Say], None], pipe: int, times: int) -> NoReturn:
    def say(**line: object) -> None:
        os.write(pipe, json.dumps(line).encode() + b"\n")

    try:
        _limit(pipe, times)
        work(lambda step: say(step=step))
        say(code=0, message="")
    except StageError as error:
        say(code=error.code, message=str(error))
    except BaseException as error:  # a panic of a library in Rust is no Exception
        raise_memory(2**26)  # to report it: the error keeps alive what filled the memory
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        say(code=-1, message=reason(" ".join(what.split())))
    finally:
        os._exit(0)


def _limit(pipe: int, times: int) -> None:
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    faulthandler.disable()  # or a crash would print the parent's stack
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # panics and warnings of libraries go there
        if standard != pipe:
            os.dup2(nowhere, standard)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (times * MAX_CPU_S, times * MAX_CPU_S + 1))
    # not RLIMIT_AS: libraries reserve many times the addresses that they use
    _limit_memory(psutil.Process().memory_info().data + times * MAX_MEMORY)


def _limit_memory(num_bytes: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _lines(pipe: int, child: psutil.Process) -> list[dict[str, Any]]:
    """Read the child's lines until it ends or idles too long; a line that is cut off is dropped."""
    content, used_s, idle_s = b"", 0.0, 0
    while idle_s < MAX_IDLE_S:
        if select.select([pipe], [], [], 1.0)[0]:
            if not (part := os.read(pipe, 2**16)):
                break
            content += part
        else:
            times = child.cpu_times()
            idle_s = idle_s + 1 if times.user + times.system == used_s else 0
            used_s = times.user + times.system
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def _death(step: str, status: int, times: int) -> str:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return f"{step} does not end within {times * MAX_CPU_S} s of processor time"
    how = "does nothing any more" if number == signal.SIGKILL else f"ends its process (signal {number})"
    return f"{step} {how}, as where {times * MAX_MEMORY >> 20} MiB of memory were not enough"
