"""Which branches have a working tree with edits that no commit holds."""

from collections.abc import Iterable
from pathlib import Path

from posttrain.exits import ConfigurationError
from posttrain.pipeline.git import git, succeeds

_REF = "refs/heads/"


def branches_with_edits(root: Path, names: Iterable[str]) -> set[str]:
    """Of `names` those whose working tree differs from the branch's commit in a file that git
    tracks; HEAD stands for the branch of `root`. A tree whose folder is gone has no edits."""
    wanted, found = set(names), set[str]()
    try:
        here = git(root, "rev-parse", "--show-toplevel")
    except ConfigurationError:  # a bare repository
        here = ""
    for block in git(root, "worktree", "list", "--porcelain").split("\n\n"):
        lines = dict(line.partition(" ")[::2] for line in block.splitlines())
        folder, branch = lines.get("worktree", ""), lines.get("branch", "").removeprefix(_REF)
        called = wanted & ({branch, f"{_REF}{branch}"} | ({"HEAD", "@"} if folder == here else set()))
        if called and Path(folder).is_dir() and not succeeds(Path(folder), "diff", "--quiet", "HEAD"):
            found |= called
    return found
