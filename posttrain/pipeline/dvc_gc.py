"""`dvc gc` of the tree: of DVC's cache stays what a commit of any branch, the tree's `dvc.lock` or
a worktree's names.

What the run cache alone remembers goes: an edit that is taken back then runs again.
"""

import logging
import subprocess
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo

from posttrain.runtime.exits import ConfigurationError, Interrupted


def collect_garbage(root: Path) -> None:
    """Remove it. Who asks has looked that nothing runs in the tree: what a run has made and not yet
    recorded would go.

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


def _edited_worktrees(root: Path) -> list[str]:
    """Git's other worktrees in which something is not committed: their `dvc.lock` may be no
    commit's."""
    listed = _git(root, "worktree", "list", "--porcelain").splitlines()
    folders = [Path(line.removeprefix("worktree ")) for line in listed if line.startswith("worktree ")]
    others = [folder for folder in folders if (folder / ".dvc").is_dir() and folder.resolve() != root.resolve()]
    return [str(folder) for folder in others if _git(folder, "status", "--porcelain")]


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False).stdout
