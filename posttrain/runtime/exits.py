"""Exit codes of a stage, as exceptions (the numbers are those of sysexits.h)."""

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from posttrain.runtime.redaction import redact


class StageError(Exception):
    """An expected end of a stage. The message says what (with the value), why it matters and what
    to do; no traceback is printed. `meaning` is a kind, and what running again would do."""

    code: ClassVar[int]
    meaning: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong knob. `key` is its dotted place in the file; `kind` a short name of what is wrong,
    for code and tests (`unknown`, `missing`, `out_of_range`, `contradiction`); `reason` and
    `remedy` are sentences for a person; `value` is what stands there, shortened, None where nothing
    does; `of_type` is the type of the section that lacks the knob or does not know it."""

    key: str
    kind: str
    reason: str
    remedy: str = ""
    value: str | None = None
    of_type: str = ""

    def __str__(self) -> str:
        place = f"{self.key}: " if self.value is None else f"{self.key} = {self.value}: "
        if self.reason.startswith(self.key):  # a sentence of the code that looked the name up
            place = ""
        return f"{place}{self.reason}{f'. {self.remedy}' if self.remedy else ''}"


class ConfigurationError(StageError):
    """Wrong knobs, environment or arguments (EX_CONFIG), with the `problems` of a file."""

    code = 78
    meaning = "wrong configuration: running again without an edit cannot help"

    def __init__(self, message: str = "", *, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class DataError(StageError):
    """Input data that no stage can use (EX_DATAERR)."""

    code = 65
    meaning = "bad data: running again on the same data cannot help"


class Interrupted(StageError):
    """Stopped by a signal, a limit or a lost machine; a further run resumes (EX_TEMPFAIL)."""

    code = 75
    meaning = "interrupted: running again resumes"


class StoppedByAlarm(StageError):
    """A health alarm under `on_alarm: stop` ended the training (EX_SOFTWARE)."""

    code = 70
    meaning = "stopped by a health alarm: running again without an edit ends there again"


_ENDS: Mapping[int, type[StageError]] = {
    end.code: end for end in (ConfigurationError, DataError, Interrupted, StoppedByAlarm)
}


def as_error(exit_code: int, message: str) -> StageError | None:
    """The exception of an exit code; None for a code that is none of ours."""
    return _ENDS[exit_code](message) if exit_code in _ENDS else None


def meaning_of(exit_code: int) -> str:
    """Half a sentence about an exit code; death by signal n is -n, or 128 + n from a shell."""
    if exit_code in _ENDS:
        return _ENDS[exit_code].meaning
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
    """128 + n for death by signal n, which `subprocess` has as -n."""
    return exit_code if exit_code >= 0 else 128 - exit_code


def say_end(stage: str, message: str, code: int) -> int:
    """Print on stderr how a stage failed; returns its exit code."""
    kind = _ENDS[code].meaning.partition(":")[0]
    print(f"[{stage}] {kind}: {redact(message)}", file=sys.stderr, flush=True)
    return code


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Print a StageError of a console command on stderr, and exit with its code."""
    try:
        yield
    except StageError as error:
        print(redact(str(error)), file=sys.stderr)
        raise SystemExit(error.code) from error
