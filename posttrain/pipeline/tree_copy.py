"""Copies a working tree to where the graph runs beside it and changes no file of it."""

import shutil
import subprocess
from pathlib import Path

_MADE = ("dvc.lock", "reports/")  # what the graph makes, but for the record of other runs
_KEPT = "reports/experiments/seeds.json"


def copy_tree(root: Path, target: Path) -> None:
    """Every file that git tracks or would, uncommitted edits too, without results."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, copy = root / name, target / name
        if source.is_file() and (name == _KEPT or not name.startswith(_MADE)):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def commit_tree(folder: Path) -> None:
    """Make the folder a git repository of one commit: DVC reads no graph that git ignores."""
    git = ["git", "-c", "user.name=copy", "-c", "user.email=copy@localhost"]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "copy"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
