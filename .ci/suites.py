"""Chooses the suites of real components that a change may have broken.

    python3 .ci/suites.py plan [--all]       prints `run NAME SECONDS reason` or `skip …`
    python3 .ci/suites.py green NAME SECONDS records in green.json that NAME passed at HEAD

A suite runs where the code of one of its paths (suites.toml) differs from its last green commit.
Docstrings and comments are not code. The suite that has waited longest comes first. This runs
before anything is installed, so it takes the standard library alone.
"""

import ast
import json
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
GREEN = Path(".ci/green.json")
UNKNOWN_S = 900  # what a suite is taken to need that nobody has timed


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def code(text: str, name: str) -> str:
    """The text of a file, or of Python its syntax tree without docstrings."""
    if not name.endswith(".py"):
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        with_docstring = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if with_docstring and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def changed(commit: str) -> set[str] | None:
    """Files whose code differs from a commit's; None where it is no ancestor of HEAD."""
    is_ancestor = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    if subprocess.run(is_ancestor, cwd=ROOT, capture_output=True, check=False).returncode:
        return None
    names = git("diff", "--name-only", "--no-renames", "-z", commit).split("\0")
    names += git("ls-files", "--others", "--exclude-standard", "-z").split("\0")

    def differs(name: str) -> bool:
        try:
            return code((ROOT / name).read_text(), name) != code(git("show", f"{commit}:{name}"), name)
        except (OSError, ValueError, SyntaxError, subprocess.CalledProcessError):  # new, removed or no text
            return True

    return {name for name in names if name and differs(name)}


def is_in(file: str, path: str) -> bool:
    """Tells whether a path of suites.toml names a file.

    `a/` names all files below a folder, `a/*.py` those directly in it."""
    return file.startswith(path) if path.endswith("/") else PurePosixPath(f"/{file}").match(f"/{path}")


def plan(*, is_all: bool) -> list[tuple[str, str, int, str]]:
    """(run or skip, suite, seconds of its last run, reason), longest since green first."""
    suites = tomllib.loads((ROOT / ".ci/suites.toml").read_text())
    records = json.loads((ROOT / GREEN).read_text())
    since = {one["commit"]: changed(one["commit"]) for one in records.values()}
    rows = []
    for name, paths in suites["paths"].items():
        record = records.get(name, {"commit": "", "date": "", "seconds": UNKNOWN_S})
        files, green = since.get(record["commit"]), f"{record['commit'][:7] or 'never'} {record['date'][:10]}"
        broken = sorted(file for file in files or () if any(is_in(file, path) for path in [*suites["common"], *paths]))
        seconds = record.get("seconds", UNKNOWN_S)
        if is_all or files is None or broken:
            more = f"{', '.join(broken[:2])} changed" if broken else "all were asked for" if is_all else "no ancestor"
            rows.append((record["date"], ("run", name, seconds, f"green at {green}: {more}")))
        else:
            rows.append((record["date"], ("skip", name, 0, f"green at {green}, unchanged since")))
    return [row for _, row in sorted(rows)]


def record_green(name: str, seconds: int) -> None:
    edited = [line[3:] for line in git("status", "--porcelain").splitlines() if line[3:] != str(GREEN)]
    edited = [file for file in edited if not file.startswith(("reports/", "dvc.lock"))]  # suites write no others
    if edited:
        print(f"not recorded that {name} is green: the tree has edits of {', '.join(edited[:3])}")
        return
    records = json.loads((ROOT / GREEN).read_text())
    date = datetime.now(UTC).isoformat(timespec="seconds")
    records[name] = {"commit": git("rev-parse", "HEAD").strip(), "date": date, "seconds": seconds}
    (ROOT / GREEN).write_text(json.dumps(records, indent=2, sort_keys=True) + "\n")
    print(f"{name} is green at {git('rev-parse', '--short', 'HEAD').strip()}: commit {GREEN}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["plan", *more] if more in ([], ["--all"]):
            for row in plan(is_all=bool(more)):
                print(*row)
        case ["green", name, seconds]:
            record_green(name, int(seconds))
        case _:
            raise SystemExit(__doc__)
