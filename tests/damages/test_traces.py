"""Damaged trace stores: every command ends with an exit code and a remedy, and a stage goes on."""

import contextlib
import io
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
from tests.traces.episodes import TRY_123, opened, record, run_of, spoken, written

COMMANDS = ["list --failed", "list --tool try_code --step 2..3", "runs", "export"]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """120 episodes of two stages, with and without tokens: several pages of each table."""
    folder = tmp_path_factory.mktemp("traces")
    by_tokens, _ = written((TRY_123, True), ("done", True))
    drawn = [
        replace(one, is_success=number % 3 > 0, step=number % 7, advantage=number / 7)
        for number in range(20)
        for one in (opened(), by_tokens, spoken(say("no"), task=lock_task("another")))
    ]
    record(folder / "traces.db", "train_policy", drawn, started_at=5.0)
    record(folder / "traces.db", "evaluate@sft", drawn, started_at=7.5)
    return folder


def output_of(command: str, path: Path, monkeypatch) -> str:
    """Output of a command. Raises StageError with what it wrote to stderr where it was refused."""
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


def test_a_damaged_store_is_read_or_refused_with_a_remedy(clean, tmp_path, monkeypatch):
    num_refused = 0
    for number in range(NUM_DAMAGES):
        path = fresh_copy(clean, tmp_path / "damaged") / "traces.db"
        what = damage(path, number)
        for command in COMMANDS:
            num_refused += not check(
                lambda: output_of(command, path, monkeypatch),
                None,
                name="traces.db",
                what=f"{what}, {command}",
                is_part=lambda _: True,
            )
    assert num_refused > NUM_DAMAGES


def test_a_damaged_store_is_imported_or_refused(clean, tmp_path):
    for number in range(NUM_DAMAGES):
        path = fresh_copy(clean, tmp_path / "damaged") / "traces.db"
        what = damage(path, number)
        mine = tmp_path / f"{number}.db"
        check(lambda: import_store(mine, path), 120, name="traces.db", what=what, is_part=lambda count: count <= 120)


def test_a_stage_goes_on_whatever_its_store_is(clean, tmp_path, repository, monkeypatch, capsys):
    params = load_params(repository / "params.yaml")
    monkeypatch.delenv("POSTTRAIN_TRACES", raising=False)
    monkeypatch.setenv("POSTTRAIN_TRACES_MAX_GB", "0.0001")  # so that it deletes too
    for number in range(NUM_DAMAGES):
        folder = tmp_path / str(number)
        path = fresh_copy(clean, folder / ".posttrain") / "traces.db"
        what = damage(path, number)
        monkeypatch.chdir(folder)
        try:
            with open_traces("train_policy", key="abc", params=params) as hand_over:
                for _ in range(3):
                    hand_over([opened()] * 200)
        except Exception as error:
            raise AssertionError(f"{what} ended a stage") from error
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) <= 1, what
        assert all("traces.db" in line and REMEDY.search(line) for line in lines), lines


def test_damage_that_comes_while_a_stage_writes_is_reported_once(tmp_path):
    path, warnings = tmp_path / "traces.db", []
    record(path, "evaluate", [opened()] * 500)
    writer = TraceWriter(path, run_of("train_policy"), max_bytes=10**9, warn=warnings.append)
    for update in ("UPDATE sqlite_sequence SET seq = 'many'", "DROP TABLE calls"):
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(update)
        writer.record([opened()] * 300)
        writer.flush()
    writer.close()
    [warning] = warnings
    assert "no more traces of this run, the stage goes on: " in warning
    assert REMEDY.search(warning)
