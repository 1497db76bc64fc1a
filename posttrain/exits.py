"""The three ends of a stage that a dispatcher must tell apart, as exceptions that carry their exit code (sysexits.h's numbers)."""

import contextlib
import sys
from collections.abc import Iterator
from typing import ClassVar


class StageError(Exception):
    """An end with a meaning. The message says what (with the value), why it matters and what to do; no traceback is printed for it."""

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


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Around a console command: an end with a meaning is said on stderr and exits with its code."""
    try:
        yield
    except StageError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.code) from error
