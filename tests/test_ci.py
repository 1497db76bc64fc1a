"""`.ci/run` runs the suites of real components that a change may have broken."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import NEEDS, REPOSITORY

pytestmark = pytest.mark.xdist_group("ci")

SUITES = tomllib.loads((REPOSITORY / ".ci" / "suites.toml").read_text(encoding="utf-8"))
NAMES = list(SUITES["paths"])
EXAMPLE = {  # a small tree with a file for two suites, one for all and one for none
    "flows/nightly.py": '"""A flow."""\nX = 1\n',
    "infra/slurm/job.sh": "true\n",
    "requirements.lock": "a==1\n",
    "docs/page.md": "words\n",
}


def sh(root: Path, *command: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(command, cwd=root, env=kept, check=True, capture_output=True, text=True).stdout


def commit(root: Path) -> str:
    sh(root, "git", "add", "--all")
    sh(root, "git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "--message", "m")
    return sh(root, "git", "rev-parse", "HEAD").strip()


@pytest.fixture
def tree(tmp_path):
    """A git repository with this project's .ci and `EXAMPLE`; every suite is green at HEAD."""
    root = tmp_path / "a tree"
    files = EXAMPLE | {
        f".ci/{name}": (REPOSITORY / ".ci" / name).read_text() for name in ("run", "suites.py", "suites.toml")
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    sh(tmp_path, "git", "init", "--quiet", str(root))
    mark_green(root, commit(root))
    return root


def mark_green(root: Path, at: str, names: list[str] = NAMES) -> None:
    record = {"commit": at, "date": "2026-01-01T00:00:00+00:00", "seconds": 60}
    (root / ".ci" / "green.json").write_text(json.dumps(dict.fromkeys(names, record)))


def chosen(root: Path, *arguments: str) -> list[str]:
    lines = sh(root, sys.executable, ".ci/suites.py", "plan", *arguments).splitlines()
    return [line.split()[1] for line in lines if line.startswith("run ")]


@pytest.mark.parametrize(
    ("file", "text", "suites"),
    [
        ("flows/nightly.py", '"""A flow."""\nX = 2\n', ["prefect"]),
        ("flows/nightly.py", '"""Another docstring."""\nX = 1  # and a comment\n', []),
        ("flows/nightly.py", "X = (", ["prefect"]),
        ("flows/new.py", "Y = 1\n", ["prefect"]),
        ("infra/slurm/job.sh", "false\n", ["slurm"]),
        ("infra/slurm/job.sh", None, ["slurm"]),
        ("requirements.lock", "a==2\n", NAMES),
        ("docs/page.md", "other words\n", []),
        ("posttrain/worlds/stocks/market.py", "Y = 1\n", []),
        ("posttrain/worlds/mcp.py", "Y = 1\n", ["keys", "worlds"]),
    ],
)
def test_a_suite_runs_where_the_code_of_one_of_its_paths_has_changed(tree, file, text, suites):
    path = tree / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink() if text is None else path.write_text(text)
    assert sorted(chosen(tree)) == sorted(suites)
    commit(tree)
    assert sorted(chosen(tree)) == sorted(suites), "a commit changes nothing about it"


def test_a_suite_runs_where_it_has_no_record_or_its_commit_is_not_in_this_history(tree):
    mark_green(tree, "0" * 40, ["slurm"])
    assert sorted(chosen(tree)) == sorted(NAMES)
    mark_green(tree, commit(tree))
    assert (chosen(tree), sorted(chosen(tree, "--all"))) == ([], sorted(NAMES))


def test_only_a_commit_is_recorded_as_green(tree):
    (tree / "reports").mkdir()
    (tree / "reports" / "made.json").write_text("{}")  # suites may write results
    at = commit(tree)
    sh(tree, sys.executable, ".ci/suites.py", "green", "slurm", "7")
    record = json.loads((tree / ".ci" / "green.json").read_text())["slurm"]
    assert (record["commit"], record["seconds"]) == (at, 7)
    (tree / "flows" / "nightly.py").write_text("X = 3\n")
    assert "not recorded" in sh(tree, sys.executable, ".ci/suites.py", "green", "slurm", "8")
    assert json.loads((tree / ".ci" / "green.json").read_text())["slurm"] == record


@pytest.fixture
def ci(tree, tmp_path):
    """Runs `.ci/run` with a `make` and suites that record their calls.

    Gives exit code, calls and output."""
    (tree / ".ci" / "suite").write_text(
        '#!/bin/sh\necho "$1" >>"$CALLS"\ncase $1 in slurm) exit 5 ;; k8s) exit 77 ;; esac\n'
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "make").write_text('#!/bin/sh\necho "make $*" >>"$CALLS"\n[ "$*" != "$FAILING" ]\n')
    (programs / "chromium").write_text("#!/bin/sh\n")
    for program in (*programs.iterdir(), tree / ".ci" / "suite"):
        program.chmod(0o755)
    commit(tree)

    def run(*arguments: str, failing: str = "", minutes: int = 80) -> tuple[int, list[str], str]:
        calls = tmp_path / "calls"
        calls.write_text("")
        path = f"{programs}:{os.environ['PATH']}"
        more = {
            "PATH": path,
            "PYTHON": sys.executable,
            "CALLS": str(calls),
            "FAILING": failing,
            "CI_MINUTES": str(minutes),
        }
        ended = subprocess.run(
            ["bash", ".ci/run", *arguments],
            cwd=tree,
            env=os.environ | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        lines = [line for line in calls.read_text().splitlines() if not line.startswith("make infra")]
        return ended.returncode, lines, ended.stdout

    return run


def test_a_suite_that_fails_fails_the_run_stops_no_other_and_only_what_was_green_is_recorded(tree, ci):
    mark_green(tree, "0" * 40)
    code, calls, output = ci()
    assert code == 1, output
    assert calls[:3] == ["make setup", "make lint", "make test"]
    assert sorted(calls[3:]) == sorted(NAMES)
    assert re.search(r"FAILED +slurm, in \d+ s, with exit code 5", output)
    assert "SKIPPED   k8s" in output
    assert sorted(chosen(tree)) == ["k8s", "slurm"]


def test_a_suite_that_would_not_end_in_time_is_named_and_left_out(tree, ci):
    (tree / "flows" / "nightly.py").write_text("X = 4\n")
    commit(tree)
    assert ci()[1][3:] == ["prefect"]
    code, calls, output = ci("--all", minutes=0)
    assert sorted(calls[3:]) == sorted(NAMES), "--all has no limit"
    mark_green(tree, "0" * 40, ["prefect"])
    code, calls, output = ci(minutes=0)
    assert (code, calls[3:]) == (0, []), output
    assert "LEFT OUT  prefect: it needs 60 s" in output


@pytest.mark.parametrize("failing", ["setup", "lint", "test"])
def test_no_suite_runs_where_lint_or_the_tests_fail(tree, ci, failing):
    mark_green(tree, "0" * 40)
    code, calls, _ = ci(failing=failing)
    assert code != 0
    assert calls[-1] == f"make {failing}"


def test_an_unknown_argument_or_suite_is_refused(tree):
    assert subprocess.run(["bash", ".ci/run", "--plna"], cwd=tree, capture_output=True, check=False).returncode == 2
    asked = ["bash", str(REPOSITORY / ".ci" / "suite"), "slrum"]
    refused = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "needs_slrum" in refused.stderr


def test_each_test_of_real_components_is_in_one_suite_and_each_suite_has_tests(request):
    if [REPOSITORY / given for given in request.config.args] != [REPOSITORY / "tests"]:
        pytest.skip("it asks what pytest has collected, which is not all")
    collected = request.config.stash[NEEDS]
    assert {file for file, needs in collected if not needs and file.startswith("tests/real/")} == set()
    assert {file for file, needs in collected if len(needs) > 1} == set()
    assert {needs[0] for _, needs in collected if needs} == {f"needs_{name}" for name in NAMES}


def test_what_make_test_leaves_out_is_what_the_suites_need():
    told = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    needs = [f"needs_{name}" for name in NAMES]
    assert f"-m 'not ({' or '.join(needs)})'" in told["addopts"]
    assert [mark.partition(":")[0] for mark in told["markers"] if mark.startswith("needs_")] == needs


def test_each_path_of_a_suite_is_there():
    missing = [
        path
        for paths in (*SUITES["paths"].values(), SUITES["common"])
        for path in paths
        if not any(REPOSITORY.glob(path))
    ]
    assert missing == []
