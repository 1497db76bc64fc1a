"""Says which suites of real components a change may have broken, and since when each is green.

    python3 .ci/suites.py plan [--all]    `run NAME reason` or `skip NAME reason` for each suite
    python3 .ci/suites.py tests NAME      the test files of a suite, or a refusal that names all
    python3 .ci/suites.py tree            the commit that is checked out, and what is edited
    python3 .ci/suites.py green NAME TREE records that a suite which began in that tree was green

The suites are those of `suites.toml`. The record, `green.json`, is a file for people to commit: it
is written only where what was tested is a commit. This runs before anything is installed, so it
takes the standard library of Python 3.11 and nothing else.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
GREEN = ".ci/green.json"
FRESH = timedelta(weeks=2)  # so long nobody looks whether the paths of a suite are all that can break it
EDITED = " with edits of "
RULE = re.compile(r"(?P<name>[^:=?#]+?)\s*(?P<sign>:=|\?=|:)(?P<rest>[^#]*)")  # without the help behind ##


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    tests: tuple[str, ...]
    paths: tuple[str, ...]
    ignored: tuple[str, ...]

    def can_break_by(self, file: str) -> bool:
        if any(is_in(file, entry) for entry in self.tests):
            return True
        return any(is_in(file, entry) for entry in self.paths) and not any(is_in(file, entry) for entry in self.ignored)


@dataclass(frozen=True, slots=True)
class Suites:
    """`common` can break each of them; `results` are written by runs of the pipeline."""

    common: tuple[str, ...]
    results: tuple[str, ...]
    all: tuple[Suite, ...]


@dataclass(frozen=True, slots=True)
class Green:
    """The last commit at which a suite was green, and when it ran."""

    commit: str
    date: datetime

    def __str__(self) -> str:
        return f"{self.commit[:7]} ({self.date:%Y-%m-%d})"


def is_in(file: str, entry: str) -> bool:
    """Whether an entry of `suites.toml` names a file: itself, its folder, or by a pattern.

    A folder ends with a slash, and the `*` of a pattern is none.
    """
    if entry.endswith("/"):
        return file.startswith(entry)
    return PurePosixPath(f"/{file}").match(f"/{entry}") if "*" in entry else file == entry


def read_suites(root: Path) -> Suites:
    told = tomllib.loads((root / ".ci" / "suites.toml").read_text(encoding="utf-8"))
    found = [
        Suite(
            name,
            tuple(one["tests"]),
            tuple(one["paths"]),
            tuple(file for files in one["ignored"].values() for file in files),
        )
        for name, one in told["suite"].items()
    ]
    return Suites(tuple(told["common"]), tuple(told["results"]), tuple(found))


def read_green(root: Path) -> dict[str, Green]:
    """Raises ValueError with the reason where the record is damaged: then none of it counts."""
    try:
        told = json.loads((root / GREEN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{GREEN} is no JSON ({error})") from error
    if not isinstance(told, dict):
        raise ValueError(f"{GREEN} holds no object")
    return {name: _green(name, one) for name, one in told.items()}


def _green(name: str, told: object) -> Green:
    if (
        not isinstance(told, dict)
        or set(told) != {"commit", "date"}
        or not all(isinstance(one, str) for one in told.values())
    ):
        raise ValueError(f"{GREEN} has {told!r} for {name!r}, and not a commit and a date")
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", told["commit"]):  # it goes to git's command line
        raise ValueError(f"{GREEN} has {told['commit']!r} for {name!r}, which is no whole name of a commit")
    try:
        date = datetime.fromisoformat(told["date"])
    except ValueError as error:
        raise ValueError(f"{GREEN} has {told['date']!r} for {name!r}, which is no date") from error
    if date.tzinfo is None:
        raise ValueError(f"{GREEN} has {told['date']!r} for {name!r}, which is in no time zone")
    return Green(told["commit"], date)


def plan(root: Path, *, is_all: bool = False) -> list[tuple[str, str, str]]:
    """For each suite `run` or `skip`, its name and the reason."""
    suites = read_suites(root)
    if is_all:
        return [("run", suite.name, "all were asked for") for suite in suites.all]
    try:
        records = read_green(root)
    except ValueError as error:
        return [("run", suite.name, f"{error}: no record counts") for suite in suites.all]
    since = {one.commit: changed(root, one.commit) for one in records.values()}
    shared = {
        commit: {
            file
            for file in files or ()
            if any(is_in(file, entry) for entry in suites.common) and matters(root, file, commit)
        }
        for commit, files in since.items()
    }

    def why(suite: Suite) -> str | None:
        """None where nothing asks for it."""
        if (green := records.get(suite.name)) is None:
            return f"{GREEN} knows no commit at which it was green"
        if not -timedelta(days=1) <= datetime.now(UTC) - green.date <= FRESH:
            return f"it was green at {green}, which is not within the last two weeks"
        if (files := since[green.commit]) is None:
            return f"it was green at {green}, which is no ancestor of HEAD, or not in this clone"
        to_blame = [file for file in files if suite.can_break_by(file) or file in shared[green.commit]]
        return f"{_some(to_blame)} changed since {green}, where it was green" if to_blame else None

    reasons = [(suite.name, why(suite)) for suite in suites.all]
    return [
        ("run", name, reason)
        if reason
        else ("skip", name, f"nothing that can break it changed since {records[name]}, where it was green")
        for name, reason in reasons
    ]


def changed(root: Path, commit: str) -> list[str] | None:
    """Files that are others than at a commit: in later commits, edited, removed or new.

    The record is not one of them. None where the commit is no ancestor of HEAD, or not in this
    clone.
    """
    if subprocess.run(
        ["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=root, check=False, capture_output=True
    ).returncode:
        return None
    since = _git(root, "diff", "--name-only", "--no-renames", "--no-ext-diff", "--no-relative", "-z", commit)
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({*since, *new} - {GREEN})


def matters(root: Path, file: str, commit: str) -> bool:
    """Whether a file that all suites have in common differs in what can break one.

    Nothing that was green imports a package that is new in the lock file, makes a target that is
    new in the Makefile, or is in a suite that .ci/run did not run; which packages are optional, and
    how sources are linted, no test reads off pyproject.toml.
    """
    what = READ.get(file)
    if what is None:
        return True
    try:
        before = what("\0".join(_git(root, "show", f"{commit}:{file}")))
        return not before.items() <= what((root / file).read_text(encoding="utf-8")).items()
    except (subprocess.CalledProcessError, OSError, ValueError):  # new, removed or damaged
        return True


def _pins(lock: str) -> Mapping[str, str]:
    return dict(line.partition("==")[::2] for line in lock.splitlines() if line and not line.startswith("#"))


def _installed_and_run(pyproject: str) -> Mapping[str, object]:
    content = tomllib.loads(pyproject)
    content.get("project", {}).pop("optional-dependencies", None)
    tools = content.pop("tool", {})
    pytest = tools.get("pytest", {}).get("ini_options", {})
    pytest.pop("markers", None)
    if isinstance(options := pytest.get("addopts"), str):
        content |= dict.fromkeys(re.findall(r"needs_\w+", options), "left out")
        pytest["addopts"] = re.sub(r"needs_\w+( or )?", "", options)
    return content | {f"tool.{name}": tools[name] for name in tools if name not in ("importlinter", "mypy", "ruff")}


def _rules(makefile: str) -> Mapping[str, object]:
    """Of each target its prerequisites with its recipe, and of each variable its value. Raises
    ValueError where a line is neither, or says something twice: then what holds is not told."""
    found: dict[str, list[str]] = {}
    recipe: list[str] = []
    for line in makefile.splitlines():
        if line.startswith("\t"):
            recipe.append(line)
        elif line.startswith(".PHONY:"):
            found |= {f".PHONY {name}": [] for name in line.split()[1:]}
        elif line and not line.startswith("#"):
            if (told := RULE.match(line)) is None or told["name"] in found:
                raise ValueError(f"Makefile: {line}")
            recipe = found[told["name"]] = [told["sign"], told["rest"].strip()]
    return found


def _steps(run: str) -> Mapping[str, object]:
    lines = run.splitlines()
    suites = [line for line in lines if re.fullmatch(r"suite \w+", line)]
    return {"others": [line for line in lines if line not in suites], **dict.fromkeys(suites)}


READ = {
    "requirements.lock": _pins,
    "pyproject.toml": _installed_and_run,
    "Makefile": _rules,
    ".ci/run": _steps,
}


def tree(root: Path) -> str:
    """The commit that is checked out, and the names of edited files that are neither results nor
    the record."""
    results = (*read_suites(root).results, GREEN)
    edited = [line[3:] for line in _git(root, "status", "--porcelain", "--no-renames", "--untracked-files=all", "-z")]
    told = [file for file in edited if not any(is_in(file, entry) for entry in results)]
    return _git(root, "rev-parse", "HEAD")[0].strip() + (EDITED + _some(told) if told else "")


def record_green(root: Path, name: str, began: str) -> str:
    """Write that a suite was green, or say why not. `began` is what `tree` gave before it ran."""
    now = tree(root)
    if EDITED in began:
        return f"not recorded that {name} is green: it ran at {began}"
    if now != began:
        return f"not recorded that {name} is green: it began at {began}, and now the tree is {now}"
    try:
        records = read_green(root)
    except ValueError as error:
        print(f"{error}: it is written anew", file=sys.stderr)
        records = {}
    records[name] = Green(began, datetime.now(UTC))
    _write(
        root / GREEN,
        {name: {"commit": one.commit, "date": one.date.isoformat(timespec="seconds")} for name, one in records.items()},
    )
    return f"{name} is green at {began[:7]}: commit {GREEN}, and it is left out while nothing that can break it changes"


def _write(path: Path, told: Mapping[str, Mapping[str, str]]) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    new.replace(path)


def _some(files: Sequence[str]) -> str:
    """Two of them, each on the one line that a reason has."""
    return ", ".join(file if file.isprintable() else ascii(file) for file in files[:2]) + (
        f" and {len(files) - 2} more" if len(files) > 2 else ""
    )


def _git(root: Path, *arguments: str) -> list[str]:
    said = subprocess.run(["git", *arguments], cwd=root, check=True, stdout=subprocess.PIPE).stdout
    return [one for one in said.decode(errors="surrogateescape").split("\0") if one]


def test_files(root: Path, name: str) -> list[str]:
    suites = {suite.name: suite for suite in read_suites(root).all}
    if name not in suites:
        raise SystemExit(f"there is no suite {name!r}: NEEDS is one of {', '.join(suites)} (.ci/suites.toml)")
    return sorted(str(path.relative_to(root)) for entry in suites[name].tests for path in root.glob(entry))


def main(arguments: Iterable[str]) -> None:
    match list(arguments):
        case ["plan", *more] if more in ([], ["--all"]):
            for line in plan(ROOT, is_all=bool(more)):
                print(*line)
        case ["tests", name]:
            print(*test_files(ROOT, name), sep="\n")
        case ["tree"]:
            print(tree(ROOT))
        case ["green", name, began] if test_files(ROOT, name):
            print(record_green(ROOT, name, began))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
