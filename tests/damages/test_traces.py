"""A damaged store of traces: what is shown, exported or imported is what was recorded, and a stage
that writes goes on."""

import contextlib
import io
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.cli.main import app
from posttrain.config.params import load_params
from posttrain.runtime.exits import StageError
from posttrain.traces.merge import import_store
from posttrain.traces.writer import TraceWriter, open_traces
from tests.damages.damaged import NUM_DAMAGES, REMEDY, check, damage, fresh_copy
from tests.rollout.lock_world import lock_task, say
from tests.traces.episodes import TRY_123, opened, read, record, run_of, spoken, written

COMMANDS = [
    "list",
    "list --failed",
    "list --tool try_code",
    "list --step 2..3",
    "runs",
    "show 3",
    "show 30",
    "export",
    "export --failed",
]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Runs of two stages, 120 episodes with and without tokens, several pages of each table."""
    folder = tmp_path_factory.mktemp("traces")
    words, tokens, other = (
        opened(),
        written((TRY_123, True), ("done", True))[0],
        spoken(say("no"), task=lock_task("another")),
    )
    drawn = [
        replace(one, is_success=number % 3 > 0, step=number % 7, advantage=number / 7)
        for number in range(20)
        for one in (words, tokens, other)
    ]
    record(folder / "traces.db", "train_policy", drawn, started_at=5.0)
    record(folder / "traces.db", "evaluate@sft", drawn, started_at=7.5)
    record(folder / "other.db", "evaluate@policy", [tokens] * 50)
    return folder


def said(command: str, path: Path, monkeypatch) -> str:
    """What a command prints. Raises StageError with what it said where it refused."""
    monkeypatch.setenv("POSTTRAIN_TRACES", str(path))
    out, errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            app(["traces", *command.split()])
        except SystemExit as end:
            if end.code not in (65, 75, 78):
                raise
            raise StageError(errors.getvalue()) from end
    return out.buffer.getvalue().decode() + errors.getvalue()


def truth(clean: Path, monkeypatch) -> dict[str, str | None]:
    """None where there is no such episode."""
    found = {}
    for command in COMMANDS:
        try:
            found[command] = said(command, clean / "traces.db", monkeypatch)
        except StageError:
            found[command] = None
    return found


def test_a_damaged_store_is_read_as_it_was_or_refused(clean, tmp_path, monkeypatch):
    expected, num_refused = truth(clean, monkeypatch), 0
    assert all(expected.values())
    for number in range(NUM_DAMAGES):
        path = fresh_copy(clean, tmp_path / "damaged") / "traces.db"
        what = damage(path, number, sibling=None)
        for command in COMMANDS:
            is_read = check(
                lambda: said(command, path, monkeypatch), expected[command], name="traces.db", what=f"{what}, {command}"
            )
            num_refused += not is_read
    assert num_refused > NUM_DAMAGES * 2


def test_any_byte_of_the_pages_may_be_another(clean, tmp_path, monkeypatch):
    """Flips where the rows are, without the damages that any reader notices."""
    expected = truth(clean, monkeypatch)
    for number in range(NUM_DAMAGES):
        path = fresh_copy(clean, tmp_path / "damaged") / "traces.db"
        content = bytearray(path.read_bytes())
        pages = [start for start in range(4096, len(content), 4096) if content[start] in (2, 5, 10, 13)]
        start = pages[number % len(pages)]
        place = start + (number * 1103 + 4095 - number * 7) % 4096
        content[place] ^= 1 << number % 8
        path.write_bytes(content)
        for command in ("list", "runs", "show 3", "export"):
            check(
                lambda: said(command, path, monkeypatch),
                expected[command],
                name="traces.db",
                what=f"byte {place}, {command}",
            )


UPDATES = [
    "UPDATE episodes SET is_failed = 1 - is_failed WHERE id = 7",
    "UPDATE episodes SET reward = 0.5 WHERE id = 120",
    "UPDATE episodes SET advantage = NULL WHERE id = 120",
    "UPDATE episodes SET step = 3 WHERE id = 119",
    "UPDATE episodes SET num_turns = 9 WHERE id = 3",
    "UPDATE episodes SET stop_reason = 'dome' WHERE id = 120",
    "UPDATE episodes SET part = 'greedy' WHERE id = 120",
    "UPDATE episodes SET run = 1, number = 999 WHERE id = 120",
    "UPDATE episodes SET task = 3 - task WHERE id = 120",
    "UPDATE episodes SET checksum = NULL WHERE id = 120",
    "UPDATE episodes SET id = 500 WHERE id = 120",
    "DELETE FROM tallies",
    "UPDATE runs SET stage = 'evaluate@SFT'",
    "UPDATE runs SET started_at = started_at + 1",
    "UPDATE runs SET settings = '[]'",
    "UPDATE tasks SET cell = 'x', checksum = 0",
    "UPDATE tasks SET content = '[1, 2]'",
    "UPDATE tools SET name = 'try_cod'",
]


@pytest.mark.parametrize("update", UPDATES)
def test_no_column_that_was_changed_is_shown_as_true(clean, tmp_path, monkeypatch, update):
    expected = truth(clean, monkeypatch)
    path = fresh_copy(clean, tmp_path / "damaged") / "traces.db"
    change(path, update)
    num_refused = 0
    for command in COMMANDS:
        num_refused += not check(
            lambda: said(command, path, monkeypatch), expected[command], name="traces.db", what=f"{update}, {command}"
        )
    assert num_refused
    with pytest.raises(StageError):
        said("check", path, monkeypatch)


@pytest.mark.parametrize(
    "update",
    [
        "UPDATE bodies SET messages = (SELECT messages FROM bodies WHERE episode = 1) WHERE episode = 3",
        "UPDATE bodies SET token_ids = x'00' WHERE episode = 3",
        "UPDATE bodies SET is_opening_left_out = 0 WHERE episode = 3",
        "UPDATE bodies SET scores = '[]', failure = x'ff' WHERE episode = 3",
        "UPDATE bodies SET checksum = NULL WHERE episode = 3",
        "DELETE FROM bodies WHERE episode = 3",
        "DELETE FROM turns WHERE episode = 2",
        "UPDATE turns SET latency_s = 'slow' WHERE episode = 2",
        "UPDATE calls SET outcome = 'error' WHERE episode = 1",
        "UPDATE calls SET tool = 77 WHERE episode = 1",
        "DELETE FROM episodes WHERE id = 3",
    ],
)
def test_no_conversation_that_was_changed_is_exported_or_imported(clean, tmp_path, monkeypatch, update):
    path = fresh_copy(clean, tmp_path / "damaged") / "traces.db"
    change(path, update)
    with pytest.raises(StageError):
        said("export", path, monkeypatch)
    with pytest.raises(StageError, match=r"traces\.db is damaged.*nothing was imported: copy it again"):
        import_store(tmp_path / "mine.db", path)


def test_what_is_whole_is_said_to_be(clean, monkeypatch):
    assert said("check", clean / "traces.db", monkeypatch) == "120 episodes are as they were recorded\n"


def change(path: Path, statement: str) -> None:
    """Without the triggers, which are not told of a flipped bit."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
        for _, sql in triggers:
            connection.execute(sql)


def test_a_damaged_store_is_imported_as_it_was_or_refused(clean, tmp_path):
    expected = 120
    for number in range(NUM_DAMAGES):
        path = fresh_copy(clean, tmp_path / "damaged") / "traces.db"
        what = damage(path, number, sibling=None)
        mine = tmp_path / f"{number}.db"
        if check(lambda: import_store(mine, path), expected, name="traces.db", what=f"{what}, import"):
            assert [read(mine, one).traced for one in (1, 60, 120)] == [
                read(clean / "traces.db", one).traced for one in (1, 60, 120)
            ]


def test_a_stage_goes_on_whatever_its_store_is(clean, tmp_path, repository, monkeypatch, capsys):
    """With one word, or none where the damage is where it writes nothing."""
    params = load_params(repository / "params.yaml")
    for number in range(NUM_DAMAGES):
        path = fresh_copy(clean, tmp_path / "damaged") / "traces.db"
        what = damage(path, number, sibling=None)
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("POSTTRAIN_TRACES", raising=False)
        monkeypatch.setenv("POSTTRAIN_TRACES_MAX_GB", "0.0001")  # so that it deletes too
        (tmp_path / ".posttrain").mkdir(exist_ok=True)
        for name in ("traces.db", "traces.db-wal", "traces.db-shm"):
            place = tmp_path / ".posttrain" / name
            if place.is_dir():
                os.rename(place, tmp_path / f"gone{number}")
            place.unlink(missing_ok=True)
        path.rename(tmp_path / ".posttrain" / "traces.db")
        try:
            with open_traces("train_policy", key="abc", params=params) as hand_over:
                for _ in range(3):
                    hand_over([opened()] * 200)
        except Exception as error:
            raise AssertionError(f"{what} ended a stage") from error
        words = capsys.readouterr().err.splitlines()
        assert len(words) <= 1, what
        assert all("the stage goes on" in word and "traces.db" in word and REMEDY.search(word) for word in words), words


def test_damage_that_comes_while_a_stage_writes_ends_its_traces_with_one_word(tmp_path):
    path, words = tmp_path / "traces.db", []
    record(path, "evaluate", [opened()] * 500)
    writer = TraceWriter(path, run_of("train_policy"), max_bytes=10**9, warn=words.append)
    for update in ("UPDATE sqlite_sequence SET seq = 'many'", "DROP TABLE turns"):
        change(path, update)
        writer.record([opened()] * 300)
        writer.flush()
    writer.close()
    [word] = words
    assert "no more traces of this run, the stage goes on: " in word
    assert REMEDY.search(word)
