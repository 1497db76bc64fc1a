"""The three ends of a stage that a dispatcher must tell apart, as exceptions that carry their exit
code (sysexits.h's numbers)."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import ClassVar

from posttrain.redaction import redact


class StageError(Exception):
    """An end with a meaning. The message says what (with the value), why it matters and what to do;
    no traceback is printed for it."""

    code: ClassVar[int]


class ConfigurationError(StageError):
    """The configuration is wrong: running again without an edit cannot help (EX_CONFIG)."""

    code = 78


class DataError(StageError):
    """The input data is bad: running again on the same data cannot help (EX_DATAERR)."""

    code = 65


class Interrupted(StageError):
    """Stopped before the end through no fault of the stage; running again resumes (EX_TEMPFAIL)."""

    code = 75


def meaning_of(exit_code: int) -> str:
    """What a stage's exit code says, in half a sentence. Death by signal n is -n, or 128 + n where
    a shell reports it."""
    ends = {
        ConfigurationError.code: "wrong configuration: running again without an edit cannot help",
        DataError.code: "bad data: running again on the same data cannot help",
        Interrupted.code: "interrupted: running again resumes",
    }
    if exit_code in ends:
        return ends[exit_code]
    if is_death_by_signal(exit_code):
        number = -exit_code if exit_code < 0 else exit_code - 128
        return f"killed by {signal.Signals(number).name}" + (
            ", often for lack of memory" if number == signal.SIGKILL else ""
        )
    return "an error in the stage itself"


def is_death_by_signal(exit_code: int) -> bool:
    """-n, or 128 + n where a shell reports it."""
    return (-exit_code if exit_code < 0 else exit_code - 128) in set(signal.Signals)


def as_shell(exit_code: int) -> int:
    """128 + n for death by signal n, which `subprocess` has as -n: no process can end with a
    negative code."""
    return exit_code if exit_code >= 0 else 128 - exit_code


def say_end(stage: str, message: str, code: int) -> int:
    """On stderr, how a stage ended that did not end well; gives its exit code."""
    kind = {ConfigurationError.code: "wrong configuration", Interrupted.code: "interrupted"}.get(code, "bad data")
    print(f"[{stage}] {kind}: {redact(message)}", file=sys.stderr, flush=True)
    return code


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Around a console command: an end with a meaning is said on stderr and exits with its code."""
    try:
        yield
    except StageError as error:
        print(redact(str(error)), file=sys.stderr)
        raise SystemExit(error.code) from error
