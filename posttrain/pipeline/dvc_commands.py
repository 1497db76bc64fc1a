"""`dvc repro` and `dvc gc` of a tree in this process, with their ends as the errors of a stage.

The watchdog of `dvc.lock` (`posttrain/provenance/lock_watchdog.py`) watches this process like any
other that runs DVC.
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

from posttrain.pipeline.git import edited_files, git
from posttrain.provenance.environment import path_with_python
from posttrain.runtime.exits import ConfigurationError, Interrupted, as_error, as_shell, meaning_of

# They log that the lock file is written, an empty line, and `git add`.
_HINTS = ("dvc.dvcfile", "dvc.repo.reproduce", "dvc.repo.scm_context")


def repro(root: Path, targets: Sequence[str] = ()) -> None:
    """Bring the targets up to date, all of `dvc.yaml` without any; the working folder is the root.

    Raises the StageError that the failed stage ended with, SystemExit with its code where that has
    no such meaning (its own error is on stderr by then), Interrupted where another DVC is at work,
    ConfigurationError where DVC refuses the tree.
    """
    os.environ["PATH"] = path_with_python()
    for name in _HINTS:
        logging.getLogger(name).setLevel(logging.WARNING)
    # `> python -m posttrain.provenance.run_stage train_sft` under `Running stage 'train_sft':`
    logging.getLogger("dvc.stage.run").addFilter(lambda record: not record.getMessage().startswith("> "))
    try:
        with Repo(str(root)) as repo:
            repo.reproduce(list(targets) or None)
    except LockError as error:
        raise Interrupted(f"another dvc is at work in {root} ({error}); run again when it is done") from error
    except DvcException as error:
        raise _end_of(error) from error


def collect_garbage(root: Path) -> None:
    """Remove from DVC's cache what no commit of any branch, the tree's `dvc.lock` or a worktree
    names; the run cache's results go too, so an edit that is taken back runs again. The caller has
    checked that nothing runs in the tree: a result that is not recorded yet would go.

    Raises ConfigurationError where the cache lies outside of the tree, so that others may share it,
    or DVC cannot read it, Interrupted where another DVC is at work.
    """
    logging.getLogger("dvc").setLevel(logging.ERROR)  # a line for each output of each commit that has no hash
    try:
        with Repo(str(root)) as repo:
            cache = Path(repo.cache.local.path)
            if not cache.resolve().is_relative_to(root.resolve()):
                raise ConfigurationError(
                    f"DVC's cache lies in {cache}, where other trees may keep theirs: "
                    "run `dvc gc --all-commits --projects TREE …` with all that do"
                )
            # force: a folder whose listing is lost is lost already, and is no reason to keep
            # nothing or all
            repo.gc(all_commits=True, workspace=True, force=True, repos=_edited_worktrees(root))
    except LockError as error:
        raise Interrupted(f"another dvc is at work in {root} ({error}); ask again when it is done") from error
    except DvcException as error:
        raise ConfigurationError(
            f"DVC removes nothing, because it cannot tell what is needed: {error}; `dvc gc --all-commits -v` says more"
        ) from error


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
    reason = f"{causes[0]} ({meaning_of(code)})"
    if error := as_error(code, reason):
        return error
    print(reason, file=sys.stderr)
    return SystemExit(as_shell(code))


def _edited_worktrees(root: Path) -> list[str]:
    """Git's other worktrees in which something is not committed: their `dvc.lock` may be no
    commit's."""
    listed = git(root, "worktree", "list", "--porcelain").splitlines()
    folders = [Path(line.removeprefix("worktree ")) for line in listed if line.startswith("worktree ")]
    others = [folder for folder in folders if (folder / ".dvc").is_dir() and folder.resolve() != root.resolve()]
    return [str(folder) for folder in others if edited_files(folder)]
