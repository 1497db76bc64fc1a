"""Git commands in a tree: plain values, and a refusal is a ConfigurationError with git's message.
Copies of a tree, to where the graph runs beside it and changes no file of it."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from posttrain.runtime.exits import ConfigurationError

_MADE = ("dvc.lock", "reports/")  # what the graph makes, but for the record of other runs
_KEPT = "reports/experiments/seeds.json"


def git(root: Path, *arguments: str, text: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Output of a git command, without the last line's end. Raises ConfigurationError where it
    fails. No shell reads the arguments."""
    ran = _run(root, *arguments, text=text, environment=environment)
    if ran.returncode:
        raise ConfigurationError(
            f"git {arguments[0]} failed in {root}: {ran.stderr.strip() or f'exit code {ran.returncode}'}"
        )
    return ran.stdout.removesuffix("\n")


def succeeds(root: Path, *arguments: str) -> bool:
    return _run(root, *arguments).returncode == 0


def edited_files(root: Path, *paths: str) -> list[str]:
    """Files that differ from HEAD, and new ones, below `paths` (by default everywhere)."""
    listed = git(root, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", *paths)
    return sorted(entry[3:] for entry in listed.split("\0") if entry)


def file_at(root: Path, revision: str, path: str) -> str | None:
    """The text of a file in a commit; None where it has no such file."""
    ran = _run(root, "show", f"{revision}:./{path}")
    return None if ran.returncode else ran.stdout


def copy_tree(root: Path, target: Path) -> None:
    """Every file that git tracks or would, uncommitted edits too, without results."""
    for name in filter(None, git(root, "ls-files", "-z", "-co", "--exclude-standard").split("\0")):
        source, copy = root / name, target / name
        if source.is_file() and (name == _KEPT or not name.startswith(_MADE)):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def commit_tree(folder: Path) -> None:
    """Make the folder a git repository of one commit: DVC reads no graph that git ignores."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=copy", "-c", "user.email=copy@localhost", "commit", "--quiet", "--message", "copy")


def _run(
    root: Path, *arguments: str, text: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments],
        cwd=root,
        input=text,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
