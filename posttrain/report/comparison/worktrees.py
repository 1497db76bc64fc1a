"""Which branches have a working tree with edits that no commit holds."""

from collections.abc import Iterable
from pathlib import Path

from posttrain.pipeline.git import git, succeeds
from posttrain.runtime.exits import ConfigurationError

_REF = "refs/heads/"


def worktrees(root: Path) -> dict[Path, str]:
    """The working trees of a repository that are there, each with its branch; an empty one where
    it is on none."""
    found = {}
    for block in git(root, "worktree", "list", "--porcelain").split("\n\n"):
        lines = dict(line.partition(" ")[::2] for line in block.splitlines())
        folder = Path(lines.get("worktree", ""))
        if folder.is_dir() and "bare" not in lines:
            found[folder] = lines.get("branch", "").removeprefix(_REF)
    return found


def branches_with_edits(root: Path, names: Iterable[str]) -> set[str]:
    """Of `names` those whose working tree differs from the branch's commit in a file that git
    tracks; HEAD stands for the branch of `root`."""
    wanted, found = set(names), set[str]()
    try:
        here = Path(git(root, "rev-parse", "--show-toplevel"))
    except ConfigurationError:  # a bare repository
        here = None
    for folder, branch in worktrees(root).items():
        called = wanted & ({branch, f"{_REF}{branch}"} | ({"HEAD", "@"} if folder == here else set()))
        if called and not succeeds(folder, "diff", "--quiet", "HEAD"):
            found |= called
    return found
