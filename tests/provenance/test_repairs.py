"""Repairs: files that a killed DVC, or one without space, has half written; damaged objects of its
cache; and files replaced by others of the same size, time and inode, as `cp -p`, `rsync -t
--inplace` and tar do, which DVC alone does not see."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.toy_tree import dvc, environment, make_tree
from posttrain.provenance.fingerprint import md5_of
from posttrain.provenance.lockfile import lock_entries, read_entries, write_entry
from posttrain.provenance.receipts import Dvc, Receipt, apply_receipts

pytestmark = [pytest.mark.needs_provenance, pytest.mark.xdist_group("windows")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_tree(tmp_path_factory.mktemp("made") / "tree")
    assert dvc(root, "repro").returncode == 0
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy in which everything has run."""
    subprocess.run(["cp", "-a", str(made), str(tmp_path / "tree")], check=True)
    return tmp_path / "tree"


@pytest.fixture
def known(root: Path) -> Path:
    """The same, and DVC has hashed every file of the copy."""
    assert "up to date" in dvc(root, "repro").stdout
    return root


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.Popen(
        command, cwd=root, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.mark.parametrize("size", [0, 100, 700, 1200])
def test_a_lock_that_is_cut_off_while_dvc_dies_is_put_back_and_the_next_repro_ends_well(root: Path, size: int):
    """Stopped in the middle of the graph, its lock cut, killed: as a kill inside of DVC's writing
    leaves it."""
    whole = (root / "dvc.lock").read_text()
    process = start(root, "repro", "--force")
    wait_until((root / ".posttrain/receipts/refine.json").exists)
    os.kill(process.pid, signal.SIGSTOP)
    with (root / "dvc.lock").open("r+") as lock:
        lock.truncate(size)
    process.kill()
    said, _ = process.communicate(timeout=30)
    assert "dvc.lock was cut off by a killed dvc; its backup is put back" in said
    done = dvc(root, "repro")
    assert done.returncode == 0, done.stdout
    assert (root / "dvc.lock").read_text() == whole


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_lock_that_nobody_has_put_back_is_by_the_next_command_of_ours(root: Path, is_empty: bool):
    whole = (root / "dvc.lock").read_text()
    size = 0 if is_empty else whole.index("refine:") + 3
    (root / "dvc.lock").write_text(whole[:size])
    assert is_empty or dvc(root, "repro").returncode == 255, "DVC alone does not get over it"
    (root / "dvc.lock").write_text(whole[:size])
    said: list[str] = []
    apply_receipts(root, said.append)
    assert (root / "dvc.lock").read_text() == whole
    assert "put back" in said[0]
    (root / ".posttrain/dvc.lock.backup").unlink()
    (root / "dvc.lock").write_text(whole[:size])
    subprocess.run(["git", "add", "dvc.lock"], cwd=root, check=True)
    apply_receipts(root, said.append)
    assert not (root / "dvc.lock").exists()
    assert "there is no backup" in said[-1]
    assert dvc(root, "repro").returncode == 0
    assert (root / "dvc.lock").read_text() == whole


def test_the_last_commits_lock_is_put_back_where_there_is_no_other(root: Path):
    whole = (root / "dvc.lock").read_text()
    for command in (["git", "add", "--all"], ["git", "commit", "--quiet", "--message", "made"]):
        subprocess.run(command, cwd=root, check=True)
    (root / ".posttrain/dvc.lock.backup").unlink()
    (root / "dvc.lock").write_text(whole[:300])
    said: list[str] = []
    apply_receipts(root, said.append)
    assert (root / "dvc.lock").read_text() == whole
    assert "the last commit's" in said[0]


def test_our_writer_is_dvcs_to_the_byte_and_leaves_the_old_or_the_new_file(root: Path):
    before = (root / "dvc.lock").read_text()
    write_entry(root, "make", lock_entries(root)["make"])
    assert (root / "dvc.lock").read_text() == before
    script = (
        "import sys; from pathlib import Path; from posttrain.provenance.lockfile import lock_entries, write_entry\n"
        "root = Path(sys.argv[1])\n"
        "entry = lock_entries(root)['make']\n"
        "while True:\n"
        "    entry['params']['params.yaml']['seed'] += 1\n"
        "    write_entry(root, 'make', entry)"
    )
    for number in range(8):
        writer = subprocess.Popen([sys.executable, "-c", script, str(root)])
        wait_until(lambda before=before: (root / "dvc.lock").read_text() != before)
        time.sleep(0.003 * number)
        writer.kill()
        writer.wait()
        before = (root / "dvc.lock").read_text()
        assert read_entries(before) is not None


def test_a_dvc_that_has_no_space_left_in_the_middle_leaves_nothing_to_mend_by_hand(root: Path):
    (root / "data/source").write_text("source 1\n")
    process = start(root, "repro")
    wait_until((root / ".posttrain/receipts/make.json").exists)
    os.kill(process.pid, signal.SIGSTOP)
    (root / ".dvc/tmp/rwlock").write_text("")
    os.kill(process.pid, signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    done = dvc(root, "repro")
    assert done.returncode == 0, said + done.stdout
    assert "source 1" in (root / "data/refined").read_text()


@pytest.mark.parametrize("number", range(4))  # `python -m benchmarks.falsify flips` does more
def test_a_damaged_object_of_the_cache_is_not_used(root: Path, number: int):
    """One byte of it flipped, the output deleted, its reader edited."""
    out, reader = (("data/made", "refine"), ("data/refined", "judge"))[number % 2]
    entry = lock_entries(root)["make" if out == "data/made" else "refine"]["outs"][0]
    objects = root / ".dvc/cache/files/md5"
    md5 = entry["md5"]
    path = objects / md5[:2] / md5[2:]
    if md5.endswith(".dir") and number % 4:
        listed = json.loads(path.read_text())
        md5 = listed[number % len(listed)]["md5"]
        path = objects / md5[:2] / md5[2:]
    content = bytearray(path.read_bytes())
    content[number % len(content)] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    before, refined = (root / "dvc.lock").read_text(), (root / "data/refined").read_text()
    for place in (root / "data/made", root / "data/refined"):
        subprocess.run(["rm", "-rf", str(place)], check=True)
    (root / f"stages/{reader}.py").write_text((root / f"stages/{reader}.py").read_text() + "# edited\n")
    results = [dvc(root, "repro") for _ in range(3)]
    assert results[-1].returncode == 0, results[-1].stdout
    outs_now, outs_then = (
        [entry["outs"] for entry in read_entries(text).values()] for text in ((root / "dvc.lock").read_text(), before)
    )
    assert outs_now == outs_then
    assert (root / "data/refined").read_text() == refined


def test_a_listing_that_dvc_cannot_read_is_removed_by_verify(root: Path):
    """DVC ends with `'relpath'` before it runs anything."""
    outs = [out for entry in lock_entries(root).values() for out in entry["outs"] if out["path"] == "data/made"]
    listing = root / ".dvc/cache/files/md5" / outs[0]["md5"][:2] / outs[0]["md5"][2:]
    whole, refined = listing.read_text(), (root / "data/refined").read_text()
    listing.chmod(0o644)
    listing.write_text(whole.replace("relpath", "rempath", 1))
    for place in ("data/made", "data/refined"):
        subprocess.run(["rm", "-rf", str(root / place)], check=True)
    (root / "stages/refine.py").write_text((root / "stages/refine.py").read_text() + "# edited\n")
    assert "relpath" in dvc(root, "repro").stdout
    verified = subprocess.run(
        [sys.executable, "-m", "posttrain.cli.main", "verify"],
        cwd=root,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "data/made" in verified.stderr + verified.stdout
    assert dvc(root, "repro").returncode == 0
    assert (listing.read_text(), (root / "data/refined").read_text()) == (whole, refined)


def test_a_stage_whose_dvc_died_before_it_began_does_not_run_on(root: Path):
    """It is init's child by then, which is nobody's dvc."""
    (root / "data/source").write_text("source 1\n")
    more = environment(DVC_STAGE="make", DVC_ROOT=str(root))
    done = subprocess.run(
        [sys.executable, "-m", "posttrain.provenance.run_stage", "make"],
        cwd=root,
        env=more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "its dvc died before it began" in done.stderr) == (75, True), done.stderr
    result = dvc(root, "repro")
    assert result.returncode == 0, result.stdout


def test_temporary_files_of_a_stage_go_with_it(root: Path, tmp_path: Path):
    """Libraries leave theirs where they are killed."""
    (root / "stages/make.py").write_text(
        f"import tempfile\ntempfile.mkdtemp()\n{(root / 'stages/make.py').read_text()}"
    )
    (tmp_path / "scratch").mkdir()
    assert dvc(root, "repro", "make", TMPDIR=str(tmp_path / "scratch")).returncode == 0
    assert not any((tmp_path / "scratch").iterdir())


def replace_unseen(path: Path, text: str) -> None:
    """With the size, times and inode that it had."""
    status = path.stat()
    assert len(text) == status.st_size
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_stage_that_runs_for_another_reason_reads_and_records_a_file_that_dvc_does_not_see(known: Path):
    replace_unseen(known / "data/source", "source 9\n")
    assert "up to date" in dvc(known, "repro").stdout, "DVC sees it by itself, and the test tests nothing"
    text = (known / "params.yaml").read_text()
    (known / "params.yaml").write_text(text.replace("\nseed: 1", "\nseed: 2"))
    assert dvc(known, "repro").returncode == 0
    assert "source 9" in (known / "data/refined").read_text()
    assert lock_entries(known)["make"]["deps"][0]["md5"] == md5_of(known / "data/source")
    assert dvc(known, "repro").returncode == 0
    assert "up to date" in dvc(known, "repro").stdout


def test_what_dvc_recorded_by_a_remembered_hash_is_corrected_with_the_reason(known: Path):
    """The guard was dead, or slower than the stage."""
    entry = lock_entries(known)["make"]
    replace_unseen(known / "data/source", "source 9\n")
    read = {"data/source": md5_of(known / "data/source")}
    deps = [dep | {"md5": read.get(dep["path"], dep["md5"])} for dep in entry["deps"]]
    params = {"params.yaml": (known / "params.yaml").read_text()}
    Receipt("make", entry["cmd"], deps, params, entry["outs"], None, Dvc(1, 0.0)).write(known)
    said: list[str] = []
    assert apply_receipts(known, said.append) == ["make"]
    assert "made from earlier contents of data/source, whose hash DVC remembered" in said[0]
    assert "Stage 'make' didn't change" in dvc(known, "repro").stdout
