"""Follows imports through a tree of files, to find which of its modules a file needs.

A stage that imports a module which it does not declare would not run again when that is edited, and
nobody would notice. Imports are parsed, at the top of a file and inside functions; nothing is
imported for it. A module that is looked up by a name at run time (`module:function`) is not seen.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

# Around every stage and in none of its results: how it starts and ends, how knobs are read, where
# its episodes and numbers are kept for a person to read. Editing these must retrain nothing.
RUNNER = (
    "posttrain/__init__.py",
    "posttrain/config/params.py",
    "posttrain/provenance/",
    "posttrain/runtime/environment.py",
    "posttrain/runtime/exits.py",
    "posttrain/runtime/import_by_name.py",
    "posttrain/runtime/knob_errors.py",
    "posttrain/runtime/locks.py",
    "posttrain/runtime/plain_yaml.py",
    "posttrain/runtime/sqlite.py",
    "posttrain/runtime/state.py",
    "posttrain/tracking/wandb_",
    "posttrain/traces/",
)


def module_file(root: Path, dotted: str) -> str | None:
    """The module's file, relative to `root`; None for a function, or another distribution."""
    path = dotted.replace(".", "/")
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if (root / file).is_file()), None)


def imports_of(root: Path, path: str) -> Iterator[str]:
    """Files of the tree that one imports itself, with the packages around them."""
    try:
        tree = ast.parse((root / path).read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        dotted: list[str] = []
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            folders = Path(path).parent.parts
            package = folders[: len(folders) + 1 - node.level] if node.level else ()
            base = ".".join([*package, *filter(None, [node.module])])
            dotted = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
        parts = [name.split(".") for name in dotted]
        names = {".".join(name[: end + 1]): None for name in parts for end in range(len(name))}
        yield from (file for name in names if (file := module_file(root, name)))


def all_imports(root: Path, path: str) -> set[str]:
    """Files of the tree imported directly or not, without the runner's."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        for file in imports_of(root, waiting.pop()):
            if file not in found and not file.startswith(RUNNER):
                found.add(file)
                waiting.append(file)
    return found


def is_empty(root: Path, path: str) -> bool:
    """True for a package file with a docstring at most: it can change no result."""
    try:
        body = ast.parse((root / path).read_bytes()).body
    except (SyntaxError, ValueError):
        return False
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)
