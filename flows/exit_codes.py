"""A flow that a person started in a terminal ends with an exit code that says how."""

import gc
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from prefect.exceptions import CancelledRun

from posttrain.runtime.exits import Interrupted, StageError
from posttrain.runtime.redaction import redact, redact_uncaught


class StageFailure(Exception):
    """A stage did not end well. `code` is that of its command, 1 where DVC itself failed."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def exit_with(run: Callable[[], Any]) -> NoReturn:
    """Exit with 0, with the exit code of the stage that failed, 75 where the run was cancelled on
    the server, or 128 + the signal that ended it."""
    redact_uncaught()
    gc.freeze()  # what was imported lives to the end; looking it all through once more at exit takes half a second
    # After a SIGTERM Prefect puts this handler back and sends the signal again. An exit ends the
    # temporary server; the default action would not.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        run()
    except (StageFailure, StageError, CancelledRun) as error:
        print(redact(str(error)), file=sys.stderr)
        sys.exit(getattr(error, "code", Interrupted.code))
    except KeyboardInterrupt:
        print("interrupted: run it again, what is done is kept", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    sys.exit(0)
