"""`dvc repro` of the tree in this process, without DVC's hints: what runs, what is skipped and what
fails is said.

What outlives a killed `dvc` (`posttrain/provenance/lock_watchdog.py`) looks after this process as
it looks after any other.
"""

import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo

from posttrain.provenance.environment import path_with_python
from posttrain.runtime.exits import ConfigurationError, Interrupted, as_error, as_shell, meaning_of

_HINTS = (
    "dvc.dvcfile",
    "dvc.repo.reproduce",
    "dvc.repo.scm_context",
)  # the lock file is written, an empty line, `git add`


def repro(root: Path, targets: Sequence[str] = ()) -> None:
    """Bring the targets up to date, all of `dvc.yaml` without any; the working folder is the root.

    Raises the StageError that the failed stage ended with, SystemExit with its code where that has
    no such meaning (its own words are on stderr by then), Interrupted where another DVC is at work,
    ConfigurationError where DVC refuses the tree.
    """
    os.environ["PATH"] = path_with_python()
    for name in _HINTS:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("dvc.stage.run").addFilter(_is_no_command)
    try:
        with Repo(str(root)) as repo:
            repo.reproduce(list(targets) or None)
    except LockError as error:
        raise Interrupted(f"another dvc is at work in {root} ({error}); run again when it is done") from error
    except DvcException as error:
        raise _end_of(error) from error


def _is_no_command(record: logging.LogRecord) -> bool:
    """`> python -m posttrain.provenance.run_stage train_sft` under `Running stage 'train_sft':`
    says nothing new."""
    return not record.getMessage().startswith("> ")


def _end_of(error: DvcException) -> BaseException:
    causes = list[str]()
    cause: BaseException | None = error
    while cause is not None:
        causes.append(str(cause))
        cause = cause.__cause__
    message = ": ".join(causes)
    if not (found := re.search(r"failed to run: .*, exited with (-?\d+)$", message)):
        return ConfigurationError(f"dvc: {message}; `dvc status` says more")
    code = int(found[1])
    said = f"{causes[0]} ({meaning_of(code)})"
    if error := as_error(code, said):
        return error
    print(said, file=sys.stderr)
    return SystemExit(as_shell(code))
