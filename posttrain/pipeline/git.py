"""Git commands in a tree: plain values, and a refusal is a ConfigurationError with git's
message."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from posttrain.runtime.exits import ConfigurationError


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
    """True if a git command exits with 0."""
    return _run(root, *arguments).returncode == 0


def edited_files(root: Path, *paths: str) -> list[str]:
    """Files that differ from HEAD, and new ones, below `paths` (by default everywhere)."""
    listed = git(root, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", *paths)
    return sorted(entry[3:] for entry in listed.split("\0") if entry)


def file_at(root: Path, revision: str, path: str) -> str | None:
    """The text of a file in a commit; None where it has no such file."""
    ran = _run(root, "show", f"{revision}:./{path}")
    return None if ran.returncode else ran.stdout


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
