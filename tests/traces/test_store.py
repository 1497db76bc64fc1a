"""The store's file: several writers, full disks, files that are no store. No failing write here is
simulated."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from posttrain.config.params import load_params
from posttrain.runtime.exits import ConfigurationError, DataError
from posttrain.traces.query import EpisodeFilter, matching
from posttrain.traces.reading import read_episodes
from posttrain.traces.store import open_to_read, open_to_write, typed_errors
from posttrain.traces.writer import TraceWriter, open_traces
from tests.traces.episodes import ids, opened, read, record, run_of

WRITER = """
import sys
from pathlib import Path
from tests.traces.episodes import opened, record
sys.stdin.readline()
for index in range(10):
    record(Path(sys.argv[1]), sys.argv[2], [opened()] * 20, uid=f"{sys.argv[2]} {index}")
"""


def start(program: str, *arguments: object, repository: Path, **options) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository), **options}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_processes_that_begin_at_once_lose_nothing(tmp_path, repository):
    path = tmp_path / "new" / "traces.db"
    writers = [start(WRITER, path, stage, repository=repository) for stage in ("evaluate@sft", "evaluate@policy")]
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    ends = [writer.communicate(timeout=120) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], ends
    assert [len(ids(path, stage=stage)) for stage in ("evaluate@sft", "evaluate@policy", "evaluate")] == [200, 200, 400]
    assert read(path, 400).traced == opened()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_store_is_read_while_it_is_written(tmp_path):
    path = tmp_path / "traces.db"
    writer = TraceWriter(path, run_of("train_policy"), max_bytes=10**9, warn=pytest.fail)
    writer.record([opened()] * 300)
    writer.flush()
    assert len(ids(path)) == 300
    writer.record([opened()])
    writer.close()
    assert len(ids(path)) == 301


def test_a_full_disk_is_said_once_and_what_was_written_before_stays(tmp_path):
    """SQLite says "database or disk is full" for both; the limit in pages is the one that a test
    can set."""
    path, said = tmp_path / "traces.db", []
    record(path, "train_policy", [opened()] * 100)
    writer = TraceWriter(path, run_of("evaluate"), max_bytes=10**9, warn=said.append)
    writer._connection.execute(f"PRAGMA max_page_count = {os.path.getsize(path) // 4096 + 40}")
    for _ in range(50):
        writer.record([opened()] * 100)
    writer.close()
    assert len(said) == 1
    assert "no more traces of this run, the stage goes on: no space left for " in said[0]
    assert len(ids(path, stage="train_policy")) == 100
    assert 0 < len(ids(path, stage="evaluate")) < 5000
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


STAGE = """
import resource
from pathlib import Path
from posttrain.config.params import load_params
from posttrain.traces.writer import open_traces
from tests.traces.episodes import opened
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
params = load_params(Path("params.yaml"))
with open_traces("train_policy", key="abc", params=params) as record:
    for step in range(100):
        record([opened()] * 100)
print("the stage is done")
"""


def test_a_stage_whose_traces_cannot_be_written_completes(tmp_path, repository):
    """Every write beyond 400,000 bytes of a file fails."""
    process = start(STAGE, repository=repository, POSTTRAIN_TRACES=str(tmp_path / "traces.db"))
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "the stage is done\n")
    [line] = errors.splitlines()
    assert line.startswith("[train_policy] no more traces of this run, the stage goes on: ")
    assert 0 < len(ids(tmp_path / "traces.db")) < 10_000


def test_our_own_bug_is_raised_where_the_stage_hands_over(tmp_path):
    writer = TraceWriter(tmp_path / "traces.db", run_of("train_policy"), max_bytes=10**9, warn=pytest.fail)
    writer.record(["no episode"])
    with pytest.raises(AttributeError, match="task"):
        writer.close()
    assert "traces_0" not in {thread.name for thread in threading.enumerate()}


def test_a_file_that_is_no_store_is_refused(tmp_path):
    path = tmp_path / "traces.db"
    path.write_text(
        "no database, but longer than a hundred characters, which is what SQLite looks at before it says "
        "anything at all."
    )
    for open_store in (open_to_read, open_to_write):
        with pytest.raises(
            DataError,
            match=r"traces\.db is damaged, cut off or no trace store \(file is not a database\): move the file away",
        ):
            open_store(path)
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(DataError, match="another SQLite file"):
        open_to_write(path)


def test_a_store_in_a_place_that_cannot_be_written_is_a_wrong_configuration(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be made"):
        open_to_write(tmp_path / "file" / "traces.db")


def read_all(path: Path) -> None:
    connection = open_to_read(path)
    with contextlib.closing(connection), typed_errors(path):
        assert [episode.traced for episode in read_episodes(connection, matching(connection, EpisodeFilter()))] != []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE bodies SET content = x'00112233'",
        "UPDATE bodies SET content = token_ids",
        "UPDATE tasks SET content = '[1, 2]'",
        "DELETE FROM bodies",
        "DELETE FROM runs",
    ],
)
def test_an_episode_that_cannot_be_unpacked_is_bad_data(tmp_path, change):
    path = tmp_path / "traces.db"
    record(path, "evaluate", [opened()])
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    with pytest.raises(DataError, match=r"traces\.db is damaged.*episode 1 cannot be read"):
        read_all(path)


@pytest.fixture
def params(repository):
    return load_params(repository / "params.yaml")


def open_and_record(params) -> None:
    with open_traces("evaluate@sft", key="abc", params=params) as hand_over:
        hand_over([opened()])


def test_a_stage_leaves_its_name_key_and_knobs(tmp_path, monkeypatch, params):
    monkeypatch.chdir(tmp_path)
    open_and_record(params)
    run = read(Path(".posttrain/traces.db"), 1).run
    assert (run.stage, run.key, run.settings["world"]["seed"], run.settings["agent"]["max_turns"]) == (
        "evaluate@sft",
        "abc",
        7,
        6,
    )


def test_traces_that_are_off_leave_nothing(tmp_path, monkeypatch, params):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTTRAIN_TRACES", "off")
    open_and_record(params)
    assert list(tmp_path.iterdir()) == []


def test_a_network_mount_that_was_asked_for_is_refused_and_the_default_place_falls_away_with_a_word(
    tmp_path, monkeypatch, capsys, params
):
    monkeypatch.chdir(tmp_path)
    mounts = [SimpleNamespace(mountpoint=str(tmp_path.resolve()), fstype="nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    open_and_record(params)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "[evaluate@sft] no traces of this run, the stage goes on: .posttrain/traces.db is on a network mount (nfs4)"
    )
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("POSTTRAIN_TRACES", "mine.db")
    with pytest.raises(ConfigurationError, match=r"mine\.db is on a network mount \(nfs4\)"):
        open_and_record(params)


def cut_off(path: Path) -> None:
    os.truncate(path, 5000)


def of_another_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")


def test_a_damaged_store_that_a_person_named_stays_where_it_is(tmp_path, monkeypatch, capsys, params):
    path = tmp_path / "traces.db"
    record(path, "evaluate", [opened()] * 500)
    cut_off(path)
    monkeypatch.setenv("POSTTRAIN_TRACES", str(path))
    open_and_record(params)
    assert "damaged, cut off or no trace store" in capsys.readouterr().err
    assert [one.name for one in tmp_path.glob("*.aside")] == []


@pytest.mark.parametrize("spoil", [cut_off, of_another_version])
def test_a_store_at_the_default_place_that_cannot_be_read_is_set_aside_and_a_new_one_begun(
    tmp_path, monkeypatch, capsys, params, spoil
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ".posttrain" / "traces.db"
    record(path, "evaluate", [opened()] * 500)
    spoil(path)
    size = path.stat().st_size
    open_and_record(params)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("It is kept as .posttrain/traces.db.aside, and a new store begun")
    assert path.with_name("traces.db.aside").stat().st_size == size
    assert len(ids(path)) == 1
