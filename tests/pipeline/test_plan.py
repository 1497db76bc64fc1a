"""The plan names what `dvc repro` then does, edit by edit, on a small tree whose stages run as ours
do."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.toy_tree import dvc, environment, make_tree
from posttrain.pipeline.plan import Fate, read_plan
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.receipts import apply_receipts
from posttrain.runtime.exits import ConfigurationError, DataError, Interrupted

pytestmark = [
    pytest.mark.needs_provenance,
    pytest.mark.xdist_group("plan"),  # they share what `made` has run
]

CHECK_STAGE = """\
  check:
    cmd: python -m posttrain.provenance.run_stage check
    deps: [params.yaml, stages/check.py]
    meta: {is_constant: true}
    outs: [data/checked]
"""
CHECK = """
from pathlib import Path
from posttrain.provenance.runner import run_stage

def check(run):
    Path("data/checked").parent.mkdir(exist_ok=True)
    Path("data/checked").write_text("checked")

if __name__ == "__main__":
    run_stage(check)
"""
STAGES = ["check", "make", "refine", "judge@first", "judge@second"]
CURRENT, CACHED, RUNS, MAYBE = "current", "cached", "runs", "maybe"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy tree, whose first stage reads all knobs and gives the same for any; everything has
    run."""
    root = make_tree(tmp_path_factory.mktemp("plan") / "tree")
    edit(root, "dvc.yaml", "stages:\n", f"stages:\n{CHECK_STAGE}")
    edit(root, "dvc.yaml", "deps: [stages/make.py,", "deps: [data/checked, stages/make.py,")
    (root / "stages/check.py").write_text(CHECK)
    assert dvc(root, "repro").returncode == 0
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", str(made), str(tmp_path / "tree")], check=True)
    return tmp_path / "tree"


def edit(root: Path, path: str, old: str, new: str) -> None:
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new, 1))


def fates(root: Path, *targets: str) -> list[Fate]:
    return [stage.fate for stage in read_plan(root, targets)]


def reasons(root: Path) -> dict[str, tuple[str, ...]]:
    return {stage.name: stage.changed for stage in read_plan(root) if stage.changed}


def repro(root: Path, *targets: str) -> dict[str, Fate]:
    """Fates of the stages by the output of `dvc repro`."""
    done = dvc(root, "repro", *targets)
    assert done.returncode == 0, done.stdout
    said = {
        r"Running stage '(.*)':": RUNS,
        r"Stage '(.*)' is cached - skip": CACHED,
        r"Stage '(.*)' didn't change": CURRENT,
    }
    return {name: fate for pattern, fate in said.items() for name in re.findall(pattern, done.stdout)}


def check(root: Path, planned: list[Fate], *, really: list[Fate] | None = None) -> None:
    """The plan is this, and DVC does it; `really` says what comes of each MAYBE."""
    assert fates(root) == planned
    assert repro(root) == dict(zip(STAGES, really or planned, strict=True))
    assert fates(root) == [CURRENT] * 5


def test_edits_of_knobs_and_of_comments(root: Path):
    check(root, [CURRENT] * 5)
    edit(root, "params.yaml", "lr: 6.0e-3", "lr: 5.0e-5")
    assert reasons(root) == {
        "check": ("params.yaml",),
        "judge@first": ("train_sft.lr 0.006 → 5e-05",),
        "judge@second": ("train_sft.lr 0.006 → 5e-05",),
    }
    check(root, [RUNS, CURRENT, CURRENT, RUNS, RUNS])
    edit(root, "params.yaml", "lr: 5.0e-5", "lr: 6.0e-3")
    check(root, [CACHED, CURRENT, CURRENT, CACHED, CACHED])
    with (root / "params.yaml").open("a") as params:
        params.write("# a comment\n")
    check(root, [RUNS, CURRENT, CURRENT, CURRENT, CURRENT])


def test_edits_of_code_that_change_the_result_and_that_do_not_and_an_edit_taken_back(root: Path):
    before = (root / "stages/make.py").read_text()
    with (root / "stages/make.py").open("a") as code:
        code.write("# edited\n")
    assert reasons(root) == {"make": ("stages/make.py",)}
    check(root, [CURRENT, RUNS, MAYBE, MAYBE, MAYBE], really=[CURRENT, RUNS, RUNS, RUNS, RUNS])
    with (root / "stages/refine.py").open("a") as code:
        code.write("# a comment\n")
    check(root, [CURRENT, CURRENT, RUNS, MAYBE, MAYBE], really=[CURRENT, CURRENT, RUNS, CURRENT, CURRENT])
    (root / "stages/make.py").write_text(before)
    assert fates(root) == [CURRENT, CACHED, RUNS, MAYBE, MAYBE], "refine is another since, and never read this"
    check(root, [CURRENT, CACHED, RUNS, MAYBE, MAYBE], really=[CURRENT, CACHED, RUNS, CACHED, CACHED])


def test_what_the_run_cache_has_is_followed_to_the_end_also_without_a_lock(root: Path):
    (root / "data/source").write_text("source 1\n")
    check(root, [CURRENT, RUNS, MAYBE, MAYBE, MAYBE], really=[CURRENT, RUNS, RUNS, RUNS, RUNS])
    (root / "data/source").write_text("source 0\n")
    assert reasons(root)["refine"] == ("data/made of make",)
    check(root, [CURRENT, CACHED, CACHED, CACHED, CACHED])
    (root / "dvc.lock").unlink()
    assert reasons(root)["make"] == ("dvc.lock has nothing of it",)
    check(root, [CACHED] * 5)


def test_a_stage_that_is_changed_itself_runs_whatever_comes_before_it_unless_the_run_cache_may_have_it(root: Path):
    (root / "data/source").write_text("source 1\n")
    edit(root, "params.yaml", "lr: 6.0e-3", "lr: 5.0e-3")
    check(root, [RUNS, RUNS, MAYBE, RUNS, RUNS], really=[RUNS, RUNS, RUNS, RUNS, RUNS])
    (root / "data/source").write_text("source 2\n")
    edit(root, "params.yaml", "lr: 5.0e-3", "lr: 6.0e-3")
    check(root, [CACHED, RUNS, MAYBE, MAYBE, MAYBE], really=[CACHED, RUNS, RUNS, RUNS, RUNS])


def test_outputs_that_are_deleted_edited_or_lost(root: Path):
    shutil.rmtree(root / "data/made")
    assert reasons(root) == {"make": ("data/made is deleted",)}
    check(root, [CURRENT, CACHED, CURRENT, CURRENT, CURRENT])
    (root / "data/refined").write_text("edited")
    assert reasons(root) == {"refine": ("data/refined is modified",)}
    check(root, [CURRENT, CURRENT, CACHED, CURRENT, CURRENT])
    md5 = lock_entries(root)["refine"]["outs"][0]["md5"]
    (root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).unlink()
    assert reasons(root) == {"refine": ("data/refined is not in cache",)}
    check(root, [CURRENT, CURRENT, RUNS, MAYBE, MAYBE], really=[CURRENT, CURRENT, RUNS, CURRENT, CURRENT])


def test_a_target_is_what_dvc_repro_takes_for_one(root: Path):
    edit(root, "params.yaml", "seed: 1 ", "seed: 2 ")
    assert [stage.name for stage in read_plan(root, ["judge@first"])] == ["check", "make", "refine", "judge@first"]
    assert [stage.name for stage in read_plan(root, ["judge"])] == STAGES
    assert fates(root, "refine") == [RUNS, RUNS, MAYBE]
    assert repro(root, "refine") == dict.fromkeys(["check", "make", "refine"], RUNS)
    assert fates(root) == [CURRENT, CURRENT, CURRENT, RUNS, RUNS]
    with pytest.raises(ConfigurationError, match="juge"):
        read_plan(root, ["juge"])


def test_a_frozen_stage_never_runs_and_another_command_does(root: Path):
    edit(root, "dvc.yaml", "outs: [data/refined]", "outs: [data/refined]\n    frozen: true")
    edit(
        root,
        "dvc.yaml",
        "python -m posttrain.provenance.run_stage make",
        "python -m posttrain.provenance.run_stage  make",
    )
    assert reasons(root) == {"make": ("its command",)}
    check(root, [CURRENT, RUNS, CURRENT, CURRENT, CURRENT])


def test_where_dvc_could_not_run_the_plan_says_so(root: Path):
    (root / "data/source").unlink()
    with pytest.raises(DataError, match="make reads data/source, which is not there"):
        read_plan(root)
    assert dvc(root, "repro").returncode != 0
    (root / "data/source").write_text("source 0\n")
    whole = (root / "dvc.lock").read_text()
    (root / "dvc.lock").write_text(whole.partition("  md5: ")[0] + "  md5")  # cut within a key
    with pytest.raises(ConfigurationError, match=r"dvc\.lock"):
        read_plan(root)
    assert dvc(root, "repro").returncode != 0
    apply_receipts(root, str)
    check(root, [CURRENT, CACHED, CURRENT, CURRENT, CURRENT], really=[CURRENT, CACHED, CURRENT, CURRENT, CURRENT])


def test_while_a_stage_runs_there_is_no_plan(root: Path, tmp_path: Path):
    (tmp_path / "hold").touch()
    (root / "data/source").write_text("source 1\n")
    command = [sys.executable, "-m", "dvc", "repro", "make"]
    more = environment(POSTTRAIN_TEST_HOLD=str(tmp_path))
    process = subprocess.Popen(command, cwd=root, env=more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.01)
    with pytest.raises(Interrupted, match="another dvc runs a stage"):
        read_plan(root)
    (tmp_path / "hold").unlink()
    assert process.wait(timeout=60) == 0


def test_a_run_whose_environment_was_not_activated_starts_stages_by_the_same_python(root: Path):
    edit(root, "params.yaml", "\nseed: 1 ", "\nseed: 2 ")
    command = [Path(sys.executable).with_name("posttrain"), "run", "make"]
    bare = environment() | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=root, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert repro(root, "make") == {"check": CURRENT, "make": CURRENT}
