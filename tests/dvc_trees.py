"""DVC in toy trees, without the second that each `dvc` takes to import itself."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.forked import python


def init_dvc(folder: Path, *, has_git: bool = True) -> None:
    """Writes what `dvc init` (`--no-scm` without git) writes."""
    (folder / ".dvc").mkdir()
    (folder / ".dvc/config").write_text("" if has_git else "[core]\n    no_scm = True\n")
    (folder / ".dvcignore").touch()
    if has_git:
        (folder / ".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
        subprocess.run(["git", "add", ".dvc", ".dvcignore"], cwd=folder, check=True)


def dvc(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`dvc ARGUMENTS` in that folder, in a process of its own."""
    return python("dvc", *arguments, cwd=folder, env=env)
