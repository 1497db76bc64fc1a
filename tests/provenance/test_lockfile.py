"""Files beside the results are written whole, or not at all, and leave nothing there."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.provenance.lockfile import repair_dvc_files
from posttrain.runtime.state import STATE_DIR, state_dir

KILLED_WHILE_IT_WRITES = """
import resource, signal, sys
from pathlib import Path
from posttrain.provenance.lockfile import replace_file
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
replace_file(Path(sys.argv[1], "reports/runs.jsonl"), "a" * 100, is_private=False, root=Path(sys.argv[1]))
"""


def test_a_writer_that_is_killed_leaves_its_part_in_the_state_folder(tmp_path: Path):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/runs.jsonl").write_text("old\n")
    state = state_dir(tmp_path)
    command = [sys.executable, "-c", KILLED_WHILE_IT_WRITES, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGXFSZ
    assert [(path.name, path.read_text()) for path in (tmp_path / "reports").iterdir()] == [("runs.jsonl", "old\n")]
    assert len(list(state.iterdir())) == 1


@pytest.mark.parametrize("text", ["", '{"write": {"/a": {"pi', "[]"])
def test_a_list_of_readers_and_writers_that_is_cut_off_is_removed(tmp_path: Path, text: str):
    rwlock = tmp_path / ".dvc/tmp/rwlock"
    rwlock.parent.mkdir(parents=True)
    rwlock.write_text(text)
    said: list[str] = []
    repair_dvc_files(tmp_path, said.append)
    assert not rwlock.exists()
    assert "was empty or cut off" in said[0]
    assert not (tmp_path / STATE_DIR).exists()
