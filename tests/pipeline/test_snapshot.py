"""A job's frozen tree and the one writer of its result: never a new value bound to an old output,
and the bytes of plain `dvc repro`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from posttrain.pipeline.job.single_stage import NOT_THERE
from posttrain.pipeline.remote.storage import restore
from posttrain.pipeline.results import record_result
from posttrain.pipeline.snapshot import freeze
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.runtime.state import STATE_DIR
from tests import dvc_trees
from tests.forked import python

CHECKPOINTS = STATE_DIR / "checkpoints"

DVC_YAML = """
stages:
  make:
    cmd: mkdir -p data reports && grep x params.yaml > data/made && cp data/made reports/made.txt
    deps: [seed]
    params: [x]
    outs:
      - data/made
      - reports/made.txt: {cache: false}
  use:
    foreach: [one, two]
    do:
      cmd: cat data/made letter > data/${item} && echo ${item} >> runs.log
      deps: [data/made, letter]
      params: [y]
      outs: ["data/${item}"]
  fail:
    cmd: exit 75
    deps: [seed]
    outs: [never]
"""


def sh(root: Path, *command: str) -> None:
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def dvc(root: Path, *arguments: str) -> str:
    done = dvc_trees.dvc(root, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def job(folder: Path, stage: str) -> int:
    return program(folder, "shared_disk", stage)


def from_run_cache(folder: Path, stage: str) -> int:
    return program(folder, "single_stage", "--from-run-cache", stage)


def program(folder: Path, *command: str) -> int:
    name, *arguments = command
    return python(f"posttrain.pipeline.job.{name}", *arguments, cwd=folder).returncode


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root; $(touch pwned)"  # a person's folder may be named anything
    folder.mkdir()
    sh(folder, "git", "init", "--quiet")
    dvc_trees.init_dvc(folder)
    for name, text in {
        "dvc.yaml": DVC_YAML,
        "params.yaml": "x: 1\ny: 2\n",
        "seed": "s\n",
        "letter": "a\n",
        ".gitignore": "runs.log\n",
    }.items():
        (folder / name).write_text(text)
    sh(folder, "git", "add", "--all")
    return folder


def test_what_is_edited_while_a_job_runs_is_not_bound_to_its_output(root, tmp_path):
    snapshot = freeze(root, "make", tmp_path / "a")
    (root / "params.yaml").write_text("x: 5\ny: 2\n")
    assert job(snapshot.folder, "make") == 0
    assert record_result(root, snapshot) == ["params.yaml:x"]
    assert not (root / "data" / "made").exists()
    assert not (root / "dvc.lock").exists()

    (root / "params.yaml").write_text(
        "x: 1\ny: 2\n"
    )  # taken back: the result comes from the run cache, git's output too
    again = freeze(root, "make", tmp_path / "b")
    assert again.key == snapshot.key
    assert from_run_cache(again.folder, "make") == 0
    assert not record_result(root, again)
    assert (root / "reports" / "made.txt").read_text() == "x: 1\n"


def test_a_result_that_was_superseded_comes_back_and_not_the_one_before(root, tmp_path):
    """DVC takes inputs as they are with outputs as `dvc.lock` has them for a run."""
    dvc(root, "repro", "--quiet", "use@one")
    (root / "letter").write_text("b\n")
    snapshot = freeze(root, "use@one", tmp_path / "job")
    assert job(snapshot.folder, "use@one") == 0
    (root / "letter").write_text("c\n")
    assert record_result(root, snapshot)
    (root / "letter").write_text("b\n")
    again = freeze(root, "use@one", tmp_path / "again")
    assert restore(again)
    assert not record_result(root, again)
    assert (root / "data/one").read_text() == "x: 1\nb\n"


@pytest.mark.parametrize(
    "order",
    [
        ("make", "use@two", "use@one"),
        pytest.param(("make", "use@one", "use@two"), marks=pytest.mark.needs_provenance),
    ],
)
def test_the_lock_file_is_that_of_dvc_repro_and_nothing_is_left_to_run(root, tmp_path, order):
    for number, name in enumerate(order):
        snapshot = freeze(root, name, tmp_path / str(number))
        assert job(snapshot.folder, name) == 0
        assert not record_result(root, snapshot)
    by_jobs = (root / "dvc.lock").read_bytes(), sorted((root / "data" / ".gitignore").read_text().split())
    assert "up to date" in dvc(root, "status", "make", "use@one", "use@two")
    (root / "dvc.lock").unlink()
    (root / "data" / ".gitignore").unlink()
    shutil.rmtree(root / ".dvc" / "cache")
    dvc(root, "repro", "make", "use@one", "use@two")
    assert ((root / "dvc.lock").read_bytes(), sorted((root / "data" / ".gitignore").read_text().split())) == by_jobs


def test_uncommitted_edits_are_in_and_a_key_is_of_contents(root, tmp_path):
    dvc(root, "repro", "make")
    first = freeze(root, "use@one", tmp_path / "a")
    (root / "letter").write_text("b\n")
    second = freeze(root, "use@one", tmp_path / "b")
    assert (second.folder / "letter").read_text() == "b\n"
    assert first.key != second.key
    assert from_run_cache(second.folder, "use@one") == NOT_THERE


def test_a_name_that_is_no_utf8_is_in_too(root, tmp_path):
    name = os.fsdecode(b"caf\xe9")
    (root / name).write_text("a\n")
    sh(root, "git", "add", "--all")
    assert (freeze(root, "make", tmp_path / "a").folder / name).read_text() == "a\n"


def test_checkpoints_are_where_those_are_who_share_them(root, tmp_path):
    assert (freeze(root, "make", tmp_path / "a").folder / CHECKPOINTS).resolve() == (root / CHECKPOINTS).resolve()
    state = tmp_path / "main" / STATE_DIR
    assert (freeze(root, "make", tmp_path / "b", state=state).folder / CHECKPOINTS).resolve() == (
        tmp_path / "main" / CHECKPOINTS
    ).resolve()


def test_a_result_that_went_from_the_cache_is_not_recorded(root, tmp_path):
    snapshot = freeze(root, "make", tmp_path / "a")
    assert job(snapshot.folder, "make") == 0
    shutil.rmtree(root / ".dvc" / "cache")
    with pytest.raises(DataError, match=r"went from DVC's cache .*run again"):
        record_result(root, snapshot)
    assert not (root / "dvc.lock").exists()


def test_the_run_cache_is_asked_by_the_submitters_own_code(root, tmp_path):
    assert job(freeze(root, "make", tmp_path / "a").folder, "make") == 0
    again = freeze(root, "make", tmp_path / "b")
    (again.folder / "posttrain").mkdir()
    (again.folder / "posttrain" / "__init__.py").write_text("raise SystemExit('of another commit')\n")
    assert restore(again)
    shutil.rmtree(root / ".dvc" / "cache" / "files")
    assert not restore(freeze(root, "make", tmp_path / "c"))


def test_an_input_that_is_nowhere_is_named(root, tmp_path):
    with pytest.raises(ConfigurationError, match="data/made"):
        freeze(root, "use@one", tmp_path / "a")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_dvc_tracks_in_a_folder_that_a_stage_reads_is_in_too(root, tmp_path, is_there):
    """`dvc add` has git ignore it; a clone has it in the cache alone."""
    given = root / "given"
    given.mkdir()
    (given / "README.md").write_text("what people add")
    (given / "rows").write_text("a row")
    sh(root, "sed", "-i", "s/deps: .seed./deps: [seed, given]/", "dvc.yaml")
    dvc(root, "add", "given/rows")
    sh(root, "git", "add", "--all")
    sh(root, "git", "commit", "--quiet", "--message", "given")
    if not is_there:
        shutil.rmtree(given)
        sh(root, "git", "checkout", "given")
        dvc(root, "checkout", "given/rows.dvc")
    snapshot = freeze(root, "make", tmp_path / "snapshot")
    assert (snapshot.folder / "given/rows").read_text() == "a row"
    assert job(snapshot.folder, "make") == 0
    assert record_result(root, snapshot) == []


def test_what_git_does_not_track_and_no_stage_declares_stays_where_it_is(root: Path, tmp_path: Path):
    """A file of keys beside the code, that no .gitignore names, would go to a bucket."""
    (root / ".env").write_text("OPENAI_API_KEY=planted\n")
    (root / "notes").mkdir()
    (root / "notes/mine.txt").write_text("mine\n")
    sh(root, "git", "rm", "--cached", "--quiet", "seed")  # declared by `make`, and not tracked any more
    frozen = freeze(root, "make", tmp_path / "frozen")
    assert (frozen.folder / "seed").exists()
    assert not [
        path
        for path in frozen.folder.rglob("*")
        if path.is_file() and path.stat().st_nlink == 1 and b"planted" in path.read_bytes()
    ]


@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_folder_with_links_is_frozen_as_dvc_hashes_it(root: Path, tmp_path: Path, is_tracked: bool):
    """Links to folders are not followed: two that lead back would be walked for ever."""
    (root / "dvc.yaml").write_text("stages:\n  look: {cmd: ls code, deps: [code], outs: [seen]}\n")
    (root / "code").mkdir()
    (root / "code/one").write_text("1\n")
    (root / "code/alias").symlink_to("one")
    for name in ("up", "again"):
        (root / "code" / name).symlink_to(".")
    if is_tracked:
        sh(root, "git", "add", "--all")
    else:
        (root / ".gitignore").write_text("/code\n")
    frozen = freeze(root, "look", tmp_path / "frozen")
    assert sorted(path.name for path in (frozen.folder / "code").iterdir()) == ["alias", "one"]
