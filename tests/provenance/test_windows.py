"""Edits at the moments at which one could be recorded as what a stage read: `dvc.lock` never says
so once the command is over."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.toy_tree import Oracle, commit, dvc, environment, make_tree, without_receipts
from posttrain.pipeline.snapshot import freeze
from posttrain.provenance.fingerprint import read_stage_inputs, take_fingerprint
from posttrain.provenance.lockfile import lock_entries
from posttrain.provenance.receipts import apply_receipts
from posttrain.provenance.run_cache import import_verified_runs, read_runs, remove_unrecorded_runs
from posttrain.provenance.run_records import unproven

pytestmark = [pytest.mark.needs_provenance, pytest.mark.xdist_group("windows")]


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def root(tmp_path: Path, oracle: Oracle) -> Path:
    root = make_tree(tmp_path / "tree")
    for path in ("stages/make.py", "stages/refine.py", "stages/judge.py", "data/source"):
        oracle.learn((root / path).read_text())
    oracle.learn_words("word")
    return root


def repro(
    root: Path, moment: Callable[[], bool], edit: Callable[[], None], *arguments: str, **more: str
) -> tuple[int, str]:
    """`dvc repro`, with an edit as soon as it is the moment; ends when the watchdog has ended,
    too."""
    command = [sys.executable, "-m", "dvc", "repro", *arguments]
    process = subprocess.Popen(
        command, cwd=root, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while process.poll() is None and not moment():
        time.sleep(0.0005)
    assert process.poll() is None, "the moment never came"
    edit()
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def has_its_receipt(root: Path, stage: str) -> Callable[[], bool]:
    """The stage has looked at its inputs for the last time; DVC has yet to hash them."""
    return (root / f".posttrain/receipts/{stage}.json").exists


def edit_source(root: Path, oracle: Oracle, text: str = "source 1\n") -> Callable[[], None]:
    oracle.learn(text)
    return lambda: (root / "data/source").write_text(text) and None


def edit_seed(root: Path, seed: int) -> Callable[[], None]:
    text = (root / "params.yaml").read_text().replace("seed: 1 ", f"seed: {seed} ", 1)
    return lambda: (root / "params.yaml").write_text(text) and None


def all_false(root: Path, oracle: Oracle) -> list[str]:
    """False entries of `dvc.lock`, and of the run cache."""
    return oracle.false_entries(lock_entries(root)) + [
        name
        for run in read_runs(root)
        for name in oracle.false_entries({run["cmd"].split()[-1]: run})
        if "judge" not in run["cmd"]
    ]


@pytest.mark.parametrize("what", ["a dep", "a knob"])
def test_an_edit_between_the_last_look_and_dvcs_hashing_is_not_recorded_as_read(root: Path, oracle: Oracle, what: str):
    edit = edit_source(root, oracle) if what == "a dep" else edit_seed(root, 2)
    code, said = repro(root, has_its_receipt(root, "make"), edit, "make")
    assert all_false(root, oracle) == []
    assert (code, "dvc.lock said that make was made from what" in said) == (0, True), said
    assert "make" in dvc(root, "status").stdout
    assert dvc(root, "repro").returncode == 0
    assert all_false(root, oracle) == []
    assert ("source 1" if what == "a dep" else "word 2") in (root / "data/refined").read_text()


def test_the_same_edit_is_recorded_as_read_where_nobody_compares_receipts_with_the_lock(
    root: Path, oracle: Oracle, tmp_path: Path
):
    ignored = str(without_receipts(tmp_path / "without"))
    repro(root, has_its_receipt(root, "make"), edit_source(root, oracle), "make", PYTHONPATH=ignored)
    assert all_false(root, oracle) == ["make"]  # the run is forgotten in any case: it has no record


@pytest.mark.parametrize("value", ["5.0e-5", "'on'", "'1:30'"])
def test_a_knob_that_yaml_1_1_reads_otherwise_than_dvc_is_recorded_as_it_was_read(root: Path, value: str):
    (root / "dvc.yaml").write_text((root / "dvc.yaml").read_text().replace("[train_sft.lr]", "[{knobs.yaml: [value]}]"))
    (root / "knobs.yaml").write_text(f"value: {value}\n")
    done = dvc(root, "repro")
    assert (done.returncode, "dvc.lock said" in done.stdout) == (0, False), done.stdout
    assert "didn't change, skipping" in dvc(root, "repro", "judge@first").stdout
    assert len(read_runs(root)) == 4


def test_an_edit_of_a_result_while_it_is_recorded_is_not_recorded_as_made(root: Path, oracle: Oracle):
    def edit() -> None:
        if (root / "data/made/one").exists():
            (root / "data/made/one").write_text("forged")

    _, said = repro(root, (root / "data/made/one").exists, edit, "make")
    assert all_false(root, oracle) == [], said
    assert dvc(root, "repro").returncode == 0
    assert "forged" not in (root / "data/refined").read_text()


def test_code_edited_while_it_is_imported_is_not_what_is_recorded(root: Path, oracle: Oracle):
    """At moments 40 ms apart: while the copy is made, while modules are imported, while the stage
    runs."""
    for number in range(6):
        text = oracle.learn_words(f"word{number}")

        def edit(text: str = text) -> None:
            (root / "ours/words.py").write_text(text)

        command = [sys.executable, "-m", "dvc", "repro", "--force", "make"]
        process = subprocess.Popen(
            command, cwd=root, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        while process.poll() is None and not (root / ".posttrain/frozen/make").exists():
            time.sleep(0.0005)
        time.sleep(0.04 * number)
        edit()
        process.communicate(timeout=60)
        assert all_false(root, oracle) == []
    assert dvc(root, "repro").returncode == 0
    assert "word5" in (root / "data/refined").read_text()
    assert all_false(root, oracle) == []


def test_an_input_swapped_while_it_is_read_and_put_back_is_not_what_is_read(root: Path, oracle: Oracle, tmp_path: Path):
    """The old file itself is put back, with its name, size and time: nothing tells but what was
    read."""
    source, aside, held = root / "data/source", tmp_path / "aside", tmp_path / "held"
    held.mkdir()
    (held / "hold").touch()

    def swap_and_back() -> None:
        source.rename(aside)
        source.write_text("swapped\n")
        (held / "hold").unlink()
        while not (root / ".posttrain/frozen/make/data/made/two").exists() and not (root / "data/made/two").exists():
            time.sleep(0.0005)
        aside.replace(source)

    code, said = repro(root, (held / "began").exists, swap_and_back, "make", POSTTRAIN_TEST_HOLD=str(held))
    assert code == 0, said
    assert "source 0" in (root / "data/made/one").read_text()
    assert all_false(root, oracle) == []


def test_a_job_in_a_snapshot_imports_nothing_of_the_live_tree(root: Path, oracle: Oracle, tmp_path: Path):
    """With the path of a worker of `make serve`, and Python's of a cautious person."""
    assert dvc(root, "repro").returncode == 0
    held = tmp_path / "held"
    held.mkdir()
    (held / "hold").touch()
    (root / "ours/words.py").write_text(oracle.learn_words("other"))
    more = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(root), "POSTTRAIN_TEST_HOLD": str(held)}
    frozen = freeze(root, "make", tmp_path / "snapshot")
    (root / "ours/words.py").write_text(oracle.learn_words("word"))
    (held / "hold").unlink()
    command = [sys.executable, "-m", "posttrain.pipeline.job.shared_disk", "--", "make"]
    done = subprocess.run(
        command, cwd=frozen.folder, env=environment(**more), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert (frozen.folder / "data/made/one").read_text().startswith("other ")
    inputs = read_stage_inputs(frozen.folder / "dvc.yaml", "make")
    assert take_fingerprint(inputs, root=frozen.folder).key == frozen.key, "a job's key is that of its checkpoints"
    assert "make" not in oracle.false_entries(lock_entries(frozen.folder))


def test_a_stage_that_dvc_runs_in_the_tree_itself_is_refused(root: Path):
    (root / "dvc.yaml").write_text(
        (root / "dvc.yaml")
        .read_text()
        .replace("python -m posttrain.provenance.run_stage make", "python -m stages.make")
    )
    done = dvc(root, "repro", "make")
    assert done.returncode != 0
    assert "its cmd is to be `python -m posttrain.provenance.run_stage make`" in done.stdout


def test_a_replace_over_hidden_folders_that_git_takes_back_is_seen(root: Path, oracle: Oracle, tmp_path: Path):
    held = tmp_path / "held"
    held.mkdir()
    (held / "hold").touch()

    def replace_and_take_back() -> None:
        line = "grep -rl 'source 0' . | xargs sed -i 's/source 0/forged 0/'"
        subprocess.run(line, shell=True, cwd=root, check=False)
        (held / "hold").unlink()
        subprocess.run(["git", "checkout", "--quiet", "."], cwd=root, check=True)

    code, said = repro(root, (held / "began").exists, replace_and_take_back, "make", POSTTRAIN_TEST_HOLD=str(held))
    assert all_false(root, oracle) == []
    assert (code != 0, "changed in the copy that the stage ran on" in said) == (True, True), said
    assert dvc(root, "repro", "make").returncode == 0
    assert "source 0" in (root / "data/made/one").read_text()


def verify(root: Path) -> tuple[list[str], list[str]]:
    """The steps of `posttrain verify`: the stages that were corrected, and those that are not
    proven."""
    corrected = apply_receipts(root, lambda _: None)
    remove_unrecorded_runs(root)
    import_verified_runs(root)
    return corrected, unproven(root)


GOOD = ([], [])


def edit_words(root: Path) -> None:
    (root / "ours/words.py").write_text("WORD = 'forged'\n")


@pytest.mark.parametrize("what", ["a dep", "a knob", "a result"])
def test_an_entry_that_no_run_made_is_named_and_its_run_is_forgotten(root: Path, what: str):
    assert dvc(root, "repro", "make").returncode == 0
    assert verify(root) == GOOD
    {
        "a dep": lambda: edit_words(root),
        "a knob": edit_seed(root, 7),
        "a result": lambda: (root / "data/made/one").write_text("forged"),
    }[what]()
    assert dvc(root, "commit", "--force", "make").returncode == 0
    assert len(read_runs(root)) == 2
    assert verify(root)[1] == ["make"]
    assert len(read_runs(root)) == 1
    assert dvc(root, "repro", "--force", "make").returncode == 0
    assert verify(root) == GOOD


@pytest.mark.parametrize("is_watchdog_killed", [False, True])
def test_a_clone_takes_no_run_of_another_before_it_is_verified(
    root: Path, oracle: Oracle, tmp_path: Path, is_watchdog_killed: bool
):
    assert dvc(root, "cache", "dir", str(tmp_path / "shared")).returncode == 0
    commit(root, "shared")
    other = tmp_path / "other"
    subprocess.run(["cp", "-a", str(root), str(other)], check=True)
    assert "is shared: from the next dvc on" in dvc(root, "repro", "make").stdout
    assert dvc(other, "repro", "make").returncode == 0
    (root / "ours/words.py").write_text(oracle.learn_words("one"))
    edited = oracle.learn_words("two")
    (other / "ours/words.py").write_text(edited)

    def edit() -> None:
        (root / "ours/words.py").write_text(edited)
        for process in psutil.process_iter(["cmdline", "cwd"]) if is_watchdog_killed else ():
            is_watchdog = "posttrain.provenance.lock_watchdog" in (process.info["cmdline"] or ())
            if is_watchdog and process.info["cwd"] == str(root):
                process.kill()

    repro(root, has_its_receipt(root, "make"), edit, "make")
    if is_watchdog_killed:
        assert oracle.false_entries(lock_entries(root)) == ["make"]
    done = dvc(other, "repro", "make")
    assert "is cached" not in done.stdout
    assert all_false(other, oracle) == []
    assert verify(root)[0] == ["make"] * is_watchdog_killed
    assert all_false(root, oracle) == []
    assert verify(other) == GOOD


def test_a_verified_run_of_another_clone_is_a_hit_with_its_record(root: Path, oracle: Oracle, tmp_path: Path):
    assert dvc(root, "cache", "dir", str(tmp_path / "shared")).returncode == 0
    commit(root, "shared")
    other = tmp_path / "other"
    subprocess.run(["cp", "-a", str(root), str(other)], check=True)
    for tree in (root, other):
        assert dvc(tree, "repro", "make").returncode == 0
    for tree in (root, other):
        (tree / "ours/words.py").write_text(oracle.learn_words("one"))
    assert dvc(root, "repro", "make").returncode == 0
    assert verify(other) == GOOD
    done = dvc(other, "repro", "make")
    assert (done.returncode, "is cached - skipping run" in done.stdout) == (0, True), done.stdout
    assert verify(other) == GOOD
    assert "one 1" in (other / "data/made/one").read_text()
