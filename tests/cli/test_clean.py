"""`posttrain clean` shows all and removes what is named, but nothing that something living might
need."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from benchmarks.toy_tree import commit, dvc, make_tree
from posttrain.dispatch.backend import Cause, JobState, JobStatus
from posttrain.dispatch.records import JobRecord, JobRecords, Owner
from posttrain.provenance.lockfile import lock_entries
from posttrain.runtime.locks import hold
from posttrain.runtime.state import STATE_DIR
from tests.console import posttrain
from tests.traces.episodes import opened, record

pytestmark = pytest.mark.xdist_group("clean")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("clean") / "tree")


@pytest.fixture
def root(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = Path(shutil.copytree(tree, tmp_path / "tree"))
    (root / STATE_DIR).mkdir()
    monkeypatch.chdir(root)
    return root


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True)


def put(path: Path, size: int = 5000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def texts_in_cache(root: Path) -> set[str]:
    """Contents of `data/refined` that DVC's cache has."""
    files = (root / ".dvc/cache/files/md5").glob("*/*")
    return {
        found
        for file in files
        for found in ("committed", "of no commit", "in the tree")
        if f"{found}\n" in file.read_text()
    }


def test_what_lies_where_is_shown_with_its_size_and_nothing_is_removed_without_a_yes(root: Path):
    kept = [
        put(root / STATE_DIR / "checkpoints/train_sft/0123/model"),
        put(root / ".dvc/cache/files/md5/ab/cd"),
    ]
    put(root / "wandb/run-1/log", 100_000)
    shown = posttrain("clean").stdout.splitlines()
    sizes = {line.split()[0]: line.split()[1] for line in shown if not line.startswith(" ")}
    assert {name: sizes[name] for name in ("cache", "checkpoints", "wandb", "traces")} == {
        "cache": "0.0",
        "checkpoints": "0.0",
        "wandb": "0.1",
        "traces": "0.0",
    }
    assert "nothing is removed without names and --yes" in posttrain("clean", "checkpoints").stdout
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize("arguments", [("chekpoints", "--yes"), ("prefect", "--yes"), ("python",), ("--yes",)])
def test_what_is_no_name_or_not_for_this_command_is_refused(root: Path, arguments: tuple[str, ...]):
    kept = put(root / STATE_DIR / "prefect/prefect.db")
    ended = posttrain("clean", *arguments)
    assert (ended.exit_code, "cache, checkpoints, jobs, traces, experiments, wandb" in ended.stderr) == (78, True)
    assert kept.exists()


def test_checkpoints_go_but_for_those_of_a_stage_that_runs(root: Path):
    folder = root / STATE_DIR / "checkpoints/train_sft"
    gone, kept = put(folder / "0123/checkpoint-1/model"), put(folder / "4567/checkpoint-1/model")
    put(folder / "0123/lock", 0)
    with hold(folder / "4567/lock"):
        said = posttrain("clean", "checkpoints", "--yes").stdout
    assert (gone.exists(), kept.exists()) == (False, True)
    assert "checkpoints: 0.0 MB removed" in said


def test_what_jobs_have_left_goes_but_for_those_that_are_not_over_and_their_runs(root: Path):
    state = root / STATE_DIR
    owner, records = Owner(state / "runs"), JobRecords(state / "jobs.db")
    for name, is_over in (("over-0123456789-1", True), ("running-0123456789-1", False)):
        tree = state / "snapshots" / name
        log = put(state / "logs" / f"{name}.log")
        put(state / "local/jobs" / name / "status"), put(tree / "dvc.yaml")
        records.add(
            JobRecord(
                name, "train", name, 1, "local", name, tree, log, owner.name if not is_over else "dead", time.time()
            )
        )
        if is_over:
            records.end(name, JobStatus(JobState.ENDED, 0, Cause.EXITED))
    assert posttrain("clean", "jobs", "--yes").exit_code == 0
    for folder in ("logs", "local/jobs", "snapshots"):
        assert [path.name.removesuffix(".log") for path in (state / folder).iterdir()] == ["running-0123456789-1"]
    assert (state / "runs" / owner.name).exists()
    owner.close()


def test_traces_go_but_not_under_a_stage_that_writes_them(root: Path):
    record(root / STATE_DIR / "traces.db", "train_policy", [opened()] * 3)
    with hold(put(root / STATE_DIR / "locks/evaluate@sft.lock", 0)):
        refused = posttrain("clean", "traces", "--yes")
    assert (refused.exit_code, "stage evaluate@sft lives" in refused.stderr) == (75, True)
    assert posttrain("clean", "traces", "--yes").exit_code == 0
    assert not list((root / STATE_DIR).glob("traces.db*"))
    assert "0.0 MB removed" in posttrain("clean", "traces", "--yes").stdout, "again does no harm"


def test_the_store_that_the_environment_names_is_the_one_that_is_shown_and_emptied(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ours, other = root / STATE_DIR / "traces.db", tmp_path / "other.db"
    for store in (ours, other):
        record(store, "train_policy", [opened()] * 3)
    before = ours.read_bytes()
    monkeypatch.setenv("POSTTRAIN_TRACES", str(other))
    shown = posttrain("clean", "traces", "--yes").stdout
    assert (str(other) in shown, other.exists(), ours.read_bytes() == before) == (True, False, True)


def test_a_file_whose_name_begins_as_the_stores_is_not_the_stores(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store, notes = tmp_path / "run", tmp_path / "run-notes.txt"
    record(store, "train_policy", [opened()] * 3)
    notes.write_text("mine")
    monkeypatch.setenv("POSTTRAIN_TRACES", str(store))
    assert posttrain("clean", "traces", "--yes").exit_code == 0
    assert (store.exists(), notes.exists()) == (False, True)


def test_elsewhere_than_in_a_tree_there_is_nothing_to_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for command in ("clean", "plan"):
        assert posttrain(command).exit_code == 78


def test_a_worktree_of_an_experiment_goes_where_all_of_it_is_committed_and_nobody_works_in_it(root: Path):
    experiments = root / STATE_DIR / "experiments"
    for name in ("done", "edited", "runs"):
        git(root, "worktree", "add", "--quiet", "-b", f"exp/{name}", str(experiments / name))
    (experiments / "edited/params.yaml").write_text("seed: 3\n")
    put(experiments / "done/data/made/one")  # an output, which git ignores
    (root / ".git/info/exclude").write_text("/data/made\n")
    (root / STATE_DIR / "keys").mkdir()
    with hold(root / STATE_DIR / "keys/experiment-runs"):
        said = posttrain("clean", "experiments", "--yes").stdout
    assert sorted(path.name for path in experiments.iterdir()) == ["edited", "runs"]
    assert ("edited stays:" in said, "runs stays: it runs" in said) == (True, True)
    subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "exp/done"], cwd=root, check=True, stdout=subprocess.DEVNULL
    )


@pytest.mark.needs_provenance
def test_the_cache_keeps_what_a_commit_of_any_branch_the_tree_or_a_worktree_needs(root: Path):
    for text, branch in (("committed\n", "other"), ("of no commit\n", ""), ("in the tree\n", "")):
        (root / "data/source").write_text(text)
        assert dvc(root, "repro", "refine").returncode == 0
        if branch:
            git(root, "checkout", "--quiet", "-b", branch)
            commit(root, "results")
            git(root, "checkout", "--quiet", "-")
    assert texts_in_cache(root) == {"committed", "of no commit", "in the tree"}
    with hold(put(root / STATE_DIR / "locks/make.lock", 0)):
        assert posttrain("clean", "cache", "--yes").exit_code == 75
    other = root / STATE_DIR / "experiments/other"
    git(root, "worktree", "add", "--quiet", "--detach", str(other))
    (other / ".dvc/config.local").write_text(f"[cache]\n    dir = {root / '.dvc/cache'}\n")
    (other / "data/source").write_text("of no commit\n")
    assert dvc(other, "repro", "refine").returncode == 0
    assert posttrain("clean", "cache", "--yes").exit_code == 0
    assert texts_in_cache(root) == {"committed", "of no commit", "in the tree"}, (
        "the worktree's, though no commit has it"
    )
    git(root, "worktree", "remove", "--force", str(other))
    ended = posttrain("clean", "cache", "--yes")
    assert ended.exit_code == 0, ended.stderr
    assert texts_in_cache(root) == {"committed", "in the tree"}
    assert "nothing to run" in posttrain("plan", "refine").stdout
    git(root, "checkout", "--quiet", "--force", "other")
    assert dvc(root, "checkout").returncode == 0
    assert "committed" in (root / "data/refined").read_text()
    assert set(lock_entries(root)) == {"make", "refine"}


def test_a_cache_that_others_may_share_is_left_to_them(root: Path, tmp_path: Path):
    kept = put(tmp_path / "shared/files/md5/ab/cdef")
    (root / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'shared'}\n")
    assert str(tmp_path / "shared") in posttrain("clean").stdout
    refused = posttrain("clean", "cache", "--yes")
    assert (refused.exit_code, "dvc gc --all-commits --projects" in refused.stderr, kept.exists()) == (78, True, True)
