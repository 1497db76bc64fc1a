"""Branches are merged by a real git that calls the driver as `make setup` has it, and a real DVC
says what has to run then."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.toy_tree import commit
from posttrain.pipeline.merge_driver import merge_entries, merge_lock, unify_lines
from posttrain.provenance.lockfile import lock_entries
from posttrain.runtime.exits import DataError
from tests.dvc_trees import dvc, init_dvc

pytestmark = pytest.mark.xdist_group("merge")
KNOBS = "lr: 1.0   # of train\nk: 1      # of count\nn: 1      # of judge\n"
DVC_YAML = """\
stages:
  prepare:
    cmd: echo prepare >> ../calls; cp source prepared
    deps: [source]
    outs: [prepared]
  train:
    cmd: echo train >> ../calls; (cat prepared; grep ^lr params.yaml) > model
    deps: [prepared]
    params: [lr]
    outs: [model]
  count:
    cmd: echo count >> ../calls; (cat prepared; grep ^k params.yaml) > counted
    deps: [prepared]
    params: [k]
    outs: [counted]
  judge:
    cmd: echo judge >> ../calls; mkdir -p reports/judge; (cat model; grep ^n params.yaml) > reports/judge/figures
    deps: [model]
    params: [n]
    outs:
      - reports/judge/figures: {cache: false}
  report:
    cmd: echo report >> ../calls; cat reports/judge/figures counted > page
    deps: [reports/judge/figures, counted]
    outs: [page]
"""
EXTRA = """\
  extra:
    cmd: echo extra >> ../calls; (cat model; grep ^e params.yaml) > more
    deps: [model]
    params: [e]
    outs: [more]
"""


@pytest.fixture(scope="module")
def driver(repository: Path) -> str:
    """The command that `make setup` gives git, with the programs of this interpreter."""
    steps = subprocess.run(["make", "-n", "setup"], cwd=repository, capture_output=True, text=True, check=True).stdout
    [step] = [line for line in steps.splitlines() if line.startswith("git config ")]
    command = step.split('"')[1]
    program = f"{repository}/.venv/bin/posttrain"
    assert f"'{program}'" in command
    return command.replace(program, str(Path(sys.executable).with_name("posttrain")))


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory, repository: Path, driver: str) -> Path:
    """A tree with branches that each have run what they changed: `exp/lr`, `exp/k`, `exp/lr-and-n`
    (the same lr) and `exp/extra`, which adds a stage; and `exp/other-lr`, where nothing has run."""
    root = tmp_path_factory.mktemp("merge") / "tree"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    for key, value in {"user.name": "a", "user.email": "a@b", "merge.posttrain.driver": driver}.items():
        git(root, "config", key, value)
    init_dvc(root)
    shutil.copy(repository / ".gitattributes", root)
    for name, text in {"source": "s\n", "params.yaml": KNOBS, "dvc.yaml": DVC_YAML}.items():
        (root / name).write_text(text)
    run_and_commit(root)
    for branch, edits in {
        "exp/lr": {"lr: 1.0": "lr: 2.0"},
        "exp/k": {"k: 1": "k: 2"},
        "exp/lr-and-n": {"lr: 1.0": "lr: 2.0", "n: 1": "n: 2"},
    }.items():
        git(root, "switch", "--quiet", "--create", branch, "main")
        edit(root / "params.yaml", edits)
        run_and_commit(root)
    git(root, "switch", "--quiet", "--create", "exp/extra", "main")
    (root / "dvc.yaml").write_text(DVC_YAML + EXTRA)
    (root / "params.yaml").write_text(KNOBS + "e: 1\n")
    run_and_commit(root)
    git(root, "switch", "--quiet", "--create", "exp/other-lr", "main")
    edit(root / "params.yaml", {"lr: 1.0": "lr: 3.0", "n: 1": "n: 3"})
    commit(root, "not run")
    return root


@pytest.fixture
def tree(experiments: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(experiments, tmp_path / "tree", symlinks=True))


def git(root: Path, *arguments: str, fails: bool = False) -> str:
    """Both streams."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["git", *arguments],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert bool(done.returncode) == fails, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


def edit(file: Path, edits: Mapping[str, str]) -> None:
    text = file.read_text()
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


def run_and_commit(root: Path) -> None:
    assert dvc(root, "repro", "--quiet").returncode == 0
    commit(root, "run")


def merged(root: Path, ours: str, theirs: str) -> Path:
    git(root, "switch", "--quiet", ours)
    git(root, "merge", "--quiet", "--no-edit", theirs)
    return root


def runs_next(root: Path) -> list[str]:
    """The stages that a `dvc repro` runs now, of whose results `dvc status` then finds nothing to
    say."""
    (root.parent / "calls").unlink(missing_ok=True)
    ran = dvc(root, "repro")
    assert ran.returncode == 0, ran.stdout
    assert "up to date" in dvc(root, "status").stdout
    calls = root.parent / "calls"
    return calls.read_text().split() if calls.exists() else []


def entries_of(root: Path, *names: str) -> dict[str, Any]:
    return {name: lock_entries(root)[name] for name in names}


def entries_at(root: Path, branch: str, *names: str) -> dict[str, Any]:
    stages = yaml.safe_load(git(root, "show", f"{branch}:dvc.lock"))["stages"]
    return {name: stages[name] for name in names}


def test_branches_that_changed_neighbouring_knobs_merge_and_only_what_reads_both_runs(tree):
    merged(tree, "exp/k", "exp/lr")
    assert (tree / "params.yaml").read_text() == KNOBS.replace("lr: 1.0", "lr: 2.0").replace("k: 1", "k: 2")
    assert list(lock_entries(tree)) == ["prepare", "train", "count", "judge"]
    assert entries_of(tree, "train", "judge") == entries_at(tree, "exp/lr", "train", "judge")
    assert entries_of(tree, "count") == entries_at(tree, "exp/k", "count")
    assert runs_next(tree) == ["report"]


def test_branches_that_ran_the_same_stage_merge_and_nothing_runs(tree):
    merged(tree, "exp/lr", "exp/lr-and-n")  # both had changed the figures: those of the entry are taken
    assert git(tree, "diff", "exp/lr-and-n") == ""
    assert runs_next(tree) == []


def test_a_stage_that_one_branch_added_is_kept_where_the_other_leaves_its_inputs(tree):
    merged(tree, "exp/k", "exp/extra")
    assert entries_of(tree, "extra") == entries_at(tree, "exp/extra", "extra")
    assert entries_of(tree, "report") == entries_at(tree, "exp/k", "report")


def test_a_stage_that_one_branch_added_runs_alone_where_the_other_changed_its_inputs(tree):
    merged(tree, "exp/lr", "exp/extra")
    assert "extra" not in lock_entries(tree)
    assert runs_next(tree) == ["extra"]


def test_a_rebase_and_a_cherry_pick_give_the_tree_of_the_merge(tree):
    merged(tree, "exp/k", "exp/lr")
    git(tree, "switch", "--quiet", "--create", "picked", "exp/k~1")
    git(tree, "cherry-pick", "exp/lr")
    assert git(tree, "diff", "exp/k", "picked") == ""
    git(tree, "switch", "--quiet", "exp/lr")
    git(tree, "rebase", "--quiet", "exp/k~1")
    assert git(tree, "diff", "exp/k", "exp/lr") == ""


def test_a_rebase_takes_the_figures_of_the_entry_too(tree):
    git(tree, "switch", "--quiet", "exp/lr-and-n")
    git(tree, "rebase", "--quiet", "exp/lr")
    assert git(tree, "diff", "exp/lr-and-n@{1}", "exp/lr-and-n") == ""


def test_a_linked_worktree_merges_with_the_same_driver(tree):
    git(tree, "worktree", "add", "--quiet", "../linked", "exp/k")
    linked = merged(tree.parent / "linked", "exp/k", "exp/lr")
    assert list(lock_entries(linked)) == ["prepare", "train", "count", "judge"]


def test_a_knob_that_both_changed_is_a_conflict_of_its_line_alone(tree):
    git(tree, "switch", "--quiet", "exp/lr")
    git(tree, "merge", "exp/other-lr", fails=True)
    assert git(tree, "diff", "--name-only", "--diff-filter=U").split() == ["params.yaml"]
    assert (tree / "params.yaml").read_text() == (
        "<<<<<<< ours\nlr: 2.0   # of train\n=======\nlr: 3.0   # of train\n>>>>>>> theirs\n"
        "k: 1      # of count\nn: 3      # of judge\n"
    )


def test_a_damaged_lock_on_one_side_is_said_and_left_out(tree):
    git(tree, "switch", "--quiet", "exp/lr")
    edit(tree / "dvc.lock", {"md5:": "md5"})
    commit(tree, "damaged")
    git(tree, "switch", "--quiet", "exp/k")
    said = git(tree, "merge", "--no-edit", "exp/lr")
    assert "dvc.lock (theirs) is damaged" in said
    assert git(tree, "diff", "exp/k~1", "--", "dvc.lock") == ""


@pytest.mark.parametrize("given", [None, "'/nowhere/posttrain' merge-driver "])
def test_where_the_driver_is_not_git_merges_as_it_does_without(tree, driver, given):
    """Neither told of, nor there any more."""
    git(tree, "config", "--unset", "merge.posttrain.driver")
    if given is not None:
        git(tree, "config", "merge.posttrain.driver", given + driver.partition("merge-driver ")[2])
    git(tree, "switch", "--quiet", "exp/k")
    git(tree, "merge", "exp/lr", fails=True)
    conflicts = git(tree, "diff", "--name-only", "--diff-filter=U").split()
    git(tree, "merge", "--abort")
    git(tree, "rm", "--quiet", ".gitattributes")
    git(tree, "commit", "--quiet", "--message", "no attributes")
    git(tree, "merge", "exp/lr", fails=True)
    assert git(tree, "diff", "--name-only", "--diff-filter=U").split() == conflicts
    assert {"dvc.lock", "params.yaml"} <= set(conflicts)


def test_each_result_that_git_keeps_is_the_drivers(repository):
    stages = yaml.safe_load((repository / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    declared = [
        out
        for stage in (stage.get("do", stage) for stage in stages.values())
        for kind in ("outs", "metrics", "plots")
        for out in stage.get(kind) or ()
    ]
    kept = [path for out in declared if isinstance(out, dict) for path, how in out.items() if how["cache"] is False]
    assert kept
    files = ["dvc.lock", "dvc.yaml", "params.yaml", *kept]
    assert {line.rpartition(" ")[2] for line in git(repository, "check-attr", "merge", *files).splitlines()} == {
        "posttrain"
    }


def entry(*, reads: Mapping[str, str], makes: Mapping[str, str], **knobs: Any) -> dict[str, Any]:
    listed = {
        part: [{"path": path, "hash": "md5", "md5": md5 * 32, "size": 1} for path, md5 in hashes.items()]
        for part, hashes in (("deps", reads), ("outs", makes))
    }
    return {"cmd": "run", **listed, "params": {"params.yaml": knobs}}


def test_a_file_that_both_changed_is_neither_ones_and_a_knob_is_ours_until_a_person_has_decided():
    by_file = [{"a": entry(reads={"code": md5}, makes={"out": md5})} for md5 in ("0", "1", "2")]
    by_knob = [{"a": entry(reads={}, makes={"out": "x"}, a={"lr": lr})} for lr in (0, 1, 2)]
    assert merge_entries(*by_file) == {}
    assert merge_entries(*by_knob) == by_knob[1]


def test_what_reads_a_dropped_entrys_output_is_kept_where_that_stayed_the_same():
    """Both changed what `check` reads, and it makes the same whatever that is."""
    base, ours, theirs = (
        {
            "use": entry(reads={"checked": "c"}, makes={"out": str(lr)}, lr=lr),
            "check": entry(reads={"code": md5}, makes={"checked": "c"}),
        }
        for md5, lr in (("0", 0), ("1", 0), ("2", 2))
    )
    assert merge_entries(base, ours, theirs) == {"use": theirs["use"]}


def test_what_read_another_result_than_the_merged_one_is_dropped():
    """`theirs` ran `make` again and committed before `use` ran."""
    base = {"make": entry(reads={"code": "0"}, makes={"m": "0"}), "use": entry(reads={"m": "0"}, makes={"u": "0"})}
    theirs = base | {"make": entry(reads={"code": "1"}, makes={"m": "1"})}
    assert merge_entries(base, base, theirs) == {"make": theirs["make"]}


def test_of_two_runs_with_the_same_inputs_ours_is_kept_with_all_that_read_its_result():
    ours, theirs = (
        {"make": entry(reads={}, makes={"m": md5}, seed=1), "use": entry(reads={"m": md5}, makes={"u": md5})}
        for md5 in ("1", "2")
    )
    base = {"make": entry(reads={}, makes={"m": "0"}, seed=0), "use": entry(reads={"m": "0"}, makes={"u": "0"})}
    assert merge_entries(base, ours, theirs) == ours


def test_a_stage_that_one_side_removed_or_renamed_leaves_no_entry_behind():
    base = {name: entry(reads={}, makes={name: "0"}, a={"lr": 0}) for name in ("old", "other")}
    ours = {name: entry(reads={}, makes={name: "1"}, a={"lr": 1}) for name in ("old", "other")}
    new = entry(reads={}, makes={"old": "0"}) | {"params": {"params.yaml": {"a.lr": 0}}}
    assert merge_entries(base, ours, {"new": new, "other": base["other"]}) == {"other": ours["other"]}  # it ran with 0
    assert merge_entries(base, base, {"new": new, "other": base["other"]}) == {"new": new, "other": base["other"]}


@pytest.mark.parametrize("edited", [{"cmd": "run --faster"}, {"outs": [{"path": "out"}, {"path": "more"}]}])
def test_a_run_of_the_stage_as_it_was_before_the_other_side_edited_dvc_yaml_is_dropped(edited):
    base, ours = ({"a": entry(reads={}, makes={"out": str(lr)}, lr=lr)} for lr in (0, 1))
    assert merge_entries(base, ours, {"a": base["a"] | edited}) == {}


def test_stages_that_read_each_others_results_are_left_to_git():
    ours, theirs = (
        {name: entry(reads={reads: "0"}, makes={makes: "0"})}
        for name, reads, makes in (("one", "a", "b"), ("two", "b", "a"))
    )
    with pytest.raises(DataError, match=r"one → two → one|two → one → two"):
        merge_entries({}, ours, theirs)


def test_a_lock_with_more_than_stages_is_left_to_git():
    text = "schema: '2.0'\nstages: {}\n"
    with pytest.raises(DataError, match="'datasets'"):
        merge_lock(text, text, text + "datasets: []\n", log=print)


def test_a_lock_that_both_sides_added_is_merged():
    text = "schema: '2.0'\nstages: {}\n"
    assert merge_lock("", text, text, log=print) == text


def test_lines_of_knobs_are_settled_with_their_comments_and_the_rest_is_gits():
    base = "a:\n  x: 1  # x\n  y: {z: 1}\nb:\n  x: 1\n  y: [1,\n    1]\n"
    ours = "a:\n  x: 2  # twice\n  y: {z: 1}\nb:\n  x: 2\n  y: [2,\n    1]\n"
    theirs = "# head\na:\n  x: 1  # x\n  y: {z: 2}\n  new: 1\nb:\n  x: 3\n  y: [1,\n    2]\n"
    assert unify_lines(base, ours, theirs) == (
        "a:\n  x: 2  # twice\n  y: {z: 2}\nb:\n  x: 1\n  y: [1,\n    1]\n",
        "a:\n  x: 2  # twice\n  y: {z: 2}\nb:\n  x: 2\n  y: [2,\n    1]\n",
        "# head\na:\n  x: 2  # twice\n  y: {z: 2}\n  new: 1\nb:\n  x: 3\n  y: [1,\n    2]\n",
    )


@pytest.mark.parametrize("text", ["a: [1\n", "", "- a: 1\n", "a: &a\n  b: *a\n", "? [a]\n: 1\n", "a: |\n  b: 1\n"])
def test_a_text_without_lines_of_knobs_is_left_as_it_is(text):
    assert unify_lines(text, "a: 1\n", "a: 2\n") == (text, "a: 1\n", "a: 2\n")
