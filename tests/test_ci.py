"""`.ci/run` chooses the suites of real components that a change may have broken.

Also what it records, and that no path which can break a suite was forgotten.
"""

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest

from posttrain.stage.imports import is_empty, module_file
from tests.conftest import NEEDS, REPOSITORY
from tests.test_graph import tree_of

pytestmark = pytest.mark.xdist_group("ci")

_spec = importlib.util.spec_from_file_location("suites", REPOSITORY / ".ci" / "suites.py")
suites = sys.modules["suites"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(suites)

SUITES = suites.read_suites(REPOSITORY)
NAMES = [suite.name for suite in SUITES.all]
SETTINGS = tomllib.loads((REPOSITORY / ".ci" / "suites.toml").read_text(encoding="utf-8"))["suite"]
OURS = ("benchmarks", "flows", "posttrain", "stages", "tests")
an_each = pytest.mark.parametrize("suite", SUITES.all, ids=NAMES)


def sh(root: Path, *command: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(command, cwd=root, env=kept | environment, check=True, capture_output=True, text=True).stdout


def commit(root: Path) -> str:
    sh(root, "git", "add", "--all")
    sh(root, "git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "--message", "m")
    return sh(root, "git", "rev-parse", "HEAD").strip()


@cache
def all_files() -> dict[str, None]:
    listed = sh(REPOSITORY, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return dict.fromkeys(name for name in listed if name and (REPOSITORY / name).is_file())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The working tree as it is, as the one commit of a repository, and that commit."""
    root = tmp_path_factory.mktemp("copy") / "a tree"
    for name in all_files():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    sh(root, "git", "init", "--quiet")
    return root, commit(root)


@pytest.fixture
def tree(copy: tuple[Path, str]) -> Path:
    """As it was committed, with a record that all suites were green there a day ago."""
    root, start = copy
    sh(root, "git", "reset", "--quiet", "--hard", start)
    sh(root, "git", "clean", "--quiet", "--force", "-d")
    write(root, {name: (start, timedelta(days=1)) for name in NAMES})
    return root


def write(root: Path, greens: dict[str, tuple[str, timedelta]]) -> None:
    told = {name: {"commit": at, "date": (datetime.now(UTC) - age).isoformat()} for name, (at, age) in greens.items()}
    (root / ".ci" / "green.json").write_text(json.dumps(told))


def edit(root: Path, file: str) -> None:
    with (root / file).open("a") as text:
        text.write("\n# edited\n")


def chosen(root: Path) -> dict[str, str]:
    """The suites that would run, each with its reason."""
    return {name: reason for verdict, name, reason in suites.plan(root) if verdict == "run"}


@cache
def chosen_by_an_edit(root: Path, file: str) -> dict[str, str]:
    """Of this file alone, of the tree as it was committed: many suites name it."""
    kept = (root / file).read_bytes()
    edit(root, file)
    found = chosen(root)
    (root / file).write_bytes(kept)
    return found


def files_of(entry: str) -> list[str]:
    return [file for file in all_files() if suites.is_in(file, entry)]


def test_where_nothing_changed_no_suite_runs_and_each_line_says_since_when(tree):
    day = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
    start = sh(tree, "git", "rev-parse", "HEAD")[:7]
    assert suites.plan(tree) == [
        ("skip", name, f"nothing that can break it changed since {start} ({day}), where it was green") for name in NAMES
    ]


@an_each
def test_an_edit_of_any_path_of_a_suite_runs_it(tree, suite):
    for entry in (*suite.tests, *suite.paths):
        file = next(file for file in files_of(entry) if suite.can_break_by(file))
        assert file in chosen_by_an_edit(tree, file).get(suite.name, ""), file
    assert chosen(tree) == {}


@an_each
def test_an_edit_of_what_is_ignored_does_not_run_a_suite(tree, suite):
    for entry in suite.ignored:
        edit(tree, files_of(entry)[0])
    assert suite.name not in chosen(tree)


@pytest.mark.parametrize("file", [".ci/run", ".ci/suite", "tests/conftest.py"])
def test_an_edit_of_what_all_have_in_common_runs_all(tree, file):
    edit(tree, file)
    assert list(chosen(tree)) == NAMES


@pytest.mark.parametrize(
    ("file", "old", "new", "are_all"),
    [
        ("requirements.lock", "\ndvc==", "\ndvc==9", True),
        ("requirements.lock", "\ndvc==", "\n# dvc==", True),
        ("requirements.lock", "\ndvc==", "\na-new-package==1.0\ndvc==", False),
        ("Makefile", "\n.PHONY: help ", "\nfly: setup  ## a new target\n\tfly --high\n\n.PHONY: fly help ", False),
        ("Makefile", "\nbench: setup  ## seconds", "\nbench: setup  ## hours", False),
        ("Makefile", "\nbench: setup", "\nbench: setup fly", True),
        ("Makefile", "pytest -n 2", "pytest -n 3", True),
        ("Makefile", " .ci/suite $(NEEDS)", " true $(NEEDS)", True),
        ("Makefile", "\nBIN := .venv/bin", "\nBIN := bin", True),
        ("Makefile", "\nJOBS ?= 1\n", "\n", True),
        ("Makefile", "\nJOBS ?= 1\n", "\nJOBS ?= 1\nBIN := bin\n", True),
        ("Makefile", "\nJOBS ?= 1\n", "\nJOBS ?= 1\ndefine what\n", True),
        (".ci/run", "\nsuite worlds\n", "\nsuite new\nsuite worlds\n", False),
        (".ci/run", "\nsuite worlds\n", "\n", True),
        (".ci/run", "\nmake lint\n", "\n", True),
        ("pyproject.toml", "needs_llamacpp)", "needs_llamacpp or needs_new)", False),
        ("pyproject.toml", "needs_vllm or needs_prefect or ", "needs_prefect or needs_vllm or ", False),
        ("pyproject.toml", "needs_vllm or ", "", True),
        ("pyproject.toml", "--strict-markers", "", True),
        ("pyproject.toml", '    "needs_killed: ', '    "needs_new: words",\n    "needs_killed: ', False),
        ("pyproject.toml", "[project]\n", '[project]\nreadme = "other"\n', True),
        ("pyproject.toml", "[tool.pytest.ini_options]\n", "[tool.pytest.ini_options]\nxfail_strict = 1\n", True),
        ("pyproject.toml", "[project]\n", "[project\n", True),
        ("pyproject.toml", "\ndev = [", '\ndev = ["a-new-package", ', False),
        ("pyproject.toml", "[tool.ruff]\n", '[tool.ruff]\nextend = "other"\n', False),
    ],
)
@pytest.mark.parametrize("is_committed", [True, False])
def test_of_packages_and_settings_only_those_count_that_a_suite_can_have_met(
    tree, file, old, new, are_all, is_committed
):
    text = (tree / file).read_text()
    assert old in text
    (tree / file).write_text(text.replace(old, new, 1))
    if is_committed:
        commit(tree)
    assert list(chosen(tree)) == (NAMES if are_all else [])


def test_a_lock_file_that_is_gone_runs_all(tree):
    (tree / "requirements.lock").unlink()
    assert list(chosen(tree)) == NAMES


@pytest.mark.parametrize(
    "file",
    [
        "README.md",
        "reports/log.md",
        ".ci/suites.py",  # tested here
        ".ci/suites.toml",
        "dvc.lock",
        "notes",
        "posttrain/evals/passk.py",
        "posttrain/data/resampling/coreset.py",
        "posttrain/rewards/total.py",
        "posttrain/worlds/stocks/phrasing.py",
        "stages/report.py",
        "tests/rewards/test_total.py",
    ],
)
def test_an_edit_elsewhere_runs_no_suite(tree, file):
    edit(tree, file)
    assert chosen(tree) == {}


def _commit(root: Path) -> None:
    edit(root, "infra/slurm/job.sh")
    commit(root)


def _stage(root: Path) -> None:
    edit(root, "infra/slurm/job.sh")
    sh(root, "git", "add", "infra")


def _rename(root: Path) -> None:
    sh(root, "git", "mv", "infra/slurm/job.sh", "infra/job.sh")


@pytest.mark.parametrize(
    "change",
    [
        _commit,
        _stage,
        _rename,
        lambda root: (root / "infra/slurm/job.sh").unlink(),
        lambda root: (root / "infra/slurm/job.sh").chmod(0o755),
        lambda root: (root / "infra/slurm/a new 'ü'\nfile").touch(),
    ],
    ids=["committed", "staged", "renamed", "removed", "mode", "untracked"],
)
def test_a_change_counts_whichever_way_it_was_made(tree, change):
    change(tree)
    assert list(chosen(tree)) == ["slurm"]
    assert "infra/slurm/" in chosen(tree)["slurm"]


def test_a_suite_runs_where_its_record_is_missing_old_or_not_of_this_history(tree):
    start = sh(tree, "git", "rev-parse", "HEAD").strip()
    aside = sh(
        tree, "git", "-c", "user.name=a", "-c", "user.email=a@b", "commit-tree", "-m", "m", "HEAD^{tree}"
    ).strip()
    day = timedelta(days=1)
    greens = {
        "vllm": (start, 15 * day),
        "prefect": (start, -2 * day),
        "slurm": (aside, day),
        "k8s": ("0" * 40, day),
        "s3": (start, 13 * day),
    }
    write(
        tree,
        greens
        | dict.fromkeys(
            ("browser", "foreign", "worlds", "provenance", "killed", "pretrained", "llamacpp", "gone"), (start, day)
        ),
    )
    assert {name: re.sub(r"\(.*\)", "", reason) for name, reason in chosen(tree).items()} == {
        "vllm": f"it was green at {start[:7]} , which is not within the last two weeks",
        "prefect": f"it was green at {start[:7]} , which is not within the last two weeks",
        "processes": ".ci/green.json knows no commit at which it was green",
        "slurm": f"it was green at {aside[:7]} , which is no ancestor of HEAD, or not in this clone",
        "k8s": "it was green at 0000000 , which is no ancestor of HEAD, or not in this clone",
    }


AT, NOW = "0" * 40, "2025-11-23T06:00:00+00:00"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b"<<<<<<< HEAD\n{}\n=======\n",
        b'{"s3": 3}',
        json.dumps({"s3": {"commit": AT}}).encode(),
        json.dumps({"s3": {"commit": AT, "date": 3}}).encode(),
        json.dumps({"s3": {"commit": AT, "date": "yesterday"}}).encode(),
        json.dumps({"s3": {"commit": AT, "date": "2025-11-23"}}).encode(),
        json.dumps({"s3": {"commit": "--output=pwned", "date": NOW}}).encode(),
    ],
)
def test_a_damaged_record_is_said_runs_all_and_is_written_anew(tree, text, capsys):
    (tree / ".ci" / "green.json").write_bytes(text)
    found = chosen(tree)
    assert list(found) == NAMES
    assert all(".ci/green.json" in reason and "no record counts" in reason for reason in found.values())
    suites.record_green(tree, "s3", suites.tree(tree))
    assert "it is written anew" in capsys.readouterr().err
    assert list(chosen(tree)) == [name for name in NAMES if name != "s3"]


def test_a_green_run_of_a_commit_is_recorded_beside_the_others_also_when_it_wrote_results(tree):
    write(tree, {"s3": (sh(tree, "git", "rev-parse", "HEAD").strip(), timedelta(days=3))})
    began = suites.tree(tree)
    edit(tree, "dvc.lock")
    edit(tree, "reports/evaluate/sft.json")
    assert "commit .ci/green.json" in suites.record_green(tree, "slurm", began)
    assert list(chosen(tree)) == [name for name in NAMES if name not in ("s3", "slurm")]
    edit(tree, "README.md")
    commit(tree)
    assert "slurm" not in chosen(tree), "the commit of the record itself changes nothing"


def test_a_green_run_of_a_tree_that_is_no_commit_is_not_recorded(tree):
    record = (tree / ".ci" / "green.json").read_text()
    clean = suites.tree(tree)
    edit(tree, "README.md")
    edited = suites.tree(tree)
    assert edited == f"{clean} with edits of README.md"
    assert "it ran at" in suites.record_green(tree, "slurm", edited), "edited throughout"
    assert "now the tree is" in suites.record_green(tree, "slurm", clean), "edited meanwhile"
    sh(tree, "git", "checkout", "--quiet", "README.md")
    assert "it ran at" in suites.record_green(tree, "slurm", edited), "the edit is gone"
    (tree / "a new file").touch()
    assert "with edits of a new file" in suites.record_green(tree, "slurm", clean)
    commit(tree)
    assert "now the tree is" in suites.record_green(tree, "slurm", clean), "another commit"
    assert (tree / ".ci" / "green.json").read_text() == record


def test_the_plan_needs_nothing_installed_and_runs_nothing(tree, tmp_path):
    (tree / "infra/slurm/new\nrun s3 \udcff").touch()
    status = sh(tree, "git", "status", "--porcelain", "--ignored")
    bare = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "CI": "true"}
    said = subprocess.run(
        ["bash", tree / ".ci/run", "--plan"],
        cwd=tmp_path,
        env=bare,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split()[:2] for line in said.stdout.splitlines()] == [
        ["run" if name == "slurm" else "skip", name] for name in NAMES
    ]
    assert sh(tree, "git", "status", "--porcelain", "--ignored") == status


@pytest.fixture
def ci(tree: Path, tmp_path: Path):
    """`ci(…)` is `.ci/run` where make and the suites only tell that they were called.

    Gives exit code, calls and output.
    """
    (tree / ".ci" / "suite").write_text(
        '#!/bin/sh\necho "$1" >>"$CALLS"\ncase $1 in slurm) exit 5 ;; k8s) exit 77 ;; esac\n'
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "make").write_text('#!/bin/sh\necho "make $*" >>"$CALLS"\n[ "$*" != "$FAILING" ]\n')
    (programs / "chromium").write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    commit(tree)

    def run(*arguments: str, failing: str = "") -> tuple[int, list[str], str]:
        calls = tmp_path / "calls"
        calls.write_text("")
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "CALLS": str(calls),
            "FAILING": failing,
            "CI": "true",
        }
        ended = subprocess.run(
            ["bash", ".ci/run", *arguments],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return (
            ended.returncode,
            [line for line in calls.read_text().splitlines() if not line.startswith("make infra")],
            ended.stdout,
        )

    return run


def test_a_suite_that_fails_fails_the_run_stops_no_other_and_only_what_was_green_is_recorded(tree, ci):
    write(tree, {})
    code, calls, said = ci()
    assert code == 1, said
    assert calls[:3] == ["make setup", "make lint", "make test"]
    assert sorted(calls[3:]) == sorted(NAMES)
    assert "FAILED    slurm" in said
    assert "with exit code 5" in said
    assert "SKIPPED   k8s" in said
    assert list(chosen(tree)) == ["slurm", "k8s"]


def test_only_chosen_suites_run_and_it_is_said_since_when_the_others_are_left_out(tree, ci):
    begin = sh(tree, "git", "rev-parse", "HEAD").strip()
    write(tree, dict.fromkeys(NAMES, (begin, timedelta(days=1))))
    edit(tree, "flows/nightly.py")
    commit(tree)
    code, calls, said = ci()
    assert code == 0, said
    assert calls == ["make setup", "make lint", "make test", "prefect"]
    assert f"left out  slurm: nothing that can break it changed since {begin[:7]}" in said
    assert "green     prefect" in said
    edit(tree, "flows/nightly.py")
    code, calls, said = ci()
    assert (code, calls[3:]) == (0, ["prefect"])
    assert "not recorded that prefect is green: it ran at" in said
    assert sorted(ci("--all")[1][3:]) == sorted(NAMES)


@pytest.mark.parametrize("failing", ["setup", "lint", "test"])
def test_no_suite_runs_where_lint_or_the_tests_fail(tree, ci, failing):
    write(tree, {})
    code, calls, _ = ci(failing=failing)
    assert code != 0
    assert calls[-1] == f"make {failing}"


def test_an_unknown_argument_or_suite_is_refused(tree):
    assert subprocess.run(["bash", ".ci/run", "--plna"], cwd=tree, capture_output=True, check=False).returncode == 2
    asked = [sys.executable, ".ci/suites.py", "tests", "slrum"]
    refused = subprocess.run(asked, cwd=tree, capture_output=True, text=True, check=False)
    assert refused.returncode
    assert "NEEDS is one of vllm, prefect" in refused.stderr


def test_each_test_of_real_components_is_in_one_suite_and_each_suite_has_tests(request):
    if [REPOSITORY / given for given in request.config.args] != [REPOSITORY / "tests"]:
        pytest.skip("it asks what pytest has collected, which is not all")
    collected = request.config.stash[NEEDS]
    in_none = {file for file, needs in collected if not needs and file.startswith("tests/real/")}
    in_two = {file for file, needs in collected if len(needs) > 1}
    assert (in_none, in_two) == (set(), set())
    found = {name: {file for file, needs in collected if needs == [f"needs_{name}"]} for name in NAMES}
    assert found == {name: set(suites.test_files(REPOSITORY, name)) for name in NAMES}


def test_what_make_test_leaves_out_is_what_the_suites_need():
    told = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    needs = [f"needs_{name}" for name in NAMES]
    assert f"-m 'not ({' or '.join(needs)})'" in told["addopts"]
    assert [mark.partition(":")[0] for mark in told["markers"] if mark.startswith("needs_")] == needs
    assert set(
        re.search(r"NEEDS=(\w+) \(([^)]*)\)", (REPOSITORY / "Makefile").read_text()).expand(r"\1, \2").split(", ")
    ) == set(NAMES)


@an_each
def test_each_path_of_a_suite_is_there_and_none_is_a_result(suite):
    assert [
        entry for entry in (*suite.tests, *suite.paths, *suite.ignored, *SUITES.common) if not files_of(entry)
    ] == []
    assert [
        file
        for file in all_files()
        if suite.can_break_by(file) and any(suites.is_in(file, entry) for entry in SUITES.results)
    ] == []


@an_each
def test_whatever_the_tests_of_a_suite_reach_can_break_it_or_is_ignored_for_a_reason(suite):
    found = reached(suite)
    ignored = {file for file in found if any(suites.is_in(file, entry) for entry in suite.ignored)}
    common = {file for file in found if any(suites.is_in(file, entry) for entry in SUITES.common)}
    assert sorted(file for file in found - ignored - common if not suite.can_break_by(file)) == []
    in_paths = {file for entry in suite.paths for file in files_of(entry)}
    assert [
        entry for entry in suite.ignored if not any(suites.is_in(file, entry) for file in ignored | in_paths)
    ] == [], "of no effect"


def reached(suite) -> set[str]:
    """Files that the tests of a suite import or name, through any number of others; what is ignored
    is not followed."""
    tests = suites.test_files(REPOSITORY, suite.name)
    folders = {f"{folder}/conftest.py" for test in tests for folder in Path(test).parents}
    waiting = [*tests, *SETTINGS[suite.name].get("starts", ()), *(folders & set(all_files()))]
    found = set(waiting)
    while waiting:
        for file in named_in(waiting.pop()) - found:
            if file.endswith(".py") and is_empty(REPOSITORY, file):
                continue
            found.add(file)
            if file.endswith(".py") and not any(suites.is_in(file, entry) for entry in suite.ignored):
                waiting.append(file)
    return found


@cache
def named_in(path: str) -> frozenset[str]:
    """Files that a Python file imports, also in a program that is one of its strings, or names.

    As a module, or in infra/.
    """
    modules, of_infra = set(), set()
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Import():
                modules |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            case ast.Constant(value=str(text)):
                modules |= {text, *re.findall(r"^\s*(?:from|import) ([\w.]+)", text, re.MULTILINE)} - set(OURS)
                of_infra |= {text} if text.startswith("infra/") else set()
            case ast.BinOp(op=ast.Div()):
                of_infra |= {text} if (text := "/".join(_parts(node))).startswith("infra/") else set()
    files = {file for name in modules if (file := _module_file(name, path))}
    whole = {name for name in of_infra if not any(other.startswith(f"{name}/") for other in of_infra)}
    return frozenset(
        {
            *files,
            *(name if name in all_files() else f"{name}/" for name in whole if files_of(name) or files_of(f"{name}/")),
        }
    )


def _parts(node: ast.expr) -> Iterator[str]:
    """`a / "b" / "c"` gives b and c."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
        yield from _parts(node.left)
        yield str(node.right.value)


def _module_file(name: str, path: str) -> str | None:
    """A module of ours, or of tests/algorithms, which its tests call by their bare names."""
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    if name.split(".")[0] in OURS:
        return module_file(REPOSITORY, name)
    bare = f"tests/algorithms/{name}.py"
    return bare if path.startswith("tests/") and bare in all_files() else None
