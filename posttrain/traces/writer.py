"""Writes a stage's episodes to the trace store from a thread of its own, behind a bounded queue.

Traces may fail and the stage may not: a full or broken disk ends the tracing of this process with
one line on stderr. A store at the default place that is damaged or of another version is set aside,
and a new one begun. Where a person named a place that cannot be (`POSTTRAIN_TRACES` on a network
mount), the stage refuses to start; at the default place it goes on without traces. From a full
store the oldest run's episodes go first, and within a run the oldest.
"""

import contextlib
import json
import math
import sqlite3
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from posttrain.runtime.exits import ConfigurationError, DataError, StageError
from posttrain.runtime.sqlite import transaction
from posttrain.traces.exchanges import delete_oldest
from posttrain.traces.packing import Row, pack_body, pack_calls, pack_filters, pack_task, to_json
from posttrain.traces.store import VARIABLE, max_store_bytes, open_to_write, set_aside, trace_location, typed_errors
from posttrain.traces.values import Run, TracedEpisode
from posttrain.types import Task

Record = Callable[[Sequence[TracedEpisode]], None]
_BATCH = 128  # episodes in one transaction: a step of the default run
_MAX_WAITING = 64  # batches; a stage that is ahead of the disk by more waits for it
_TARGET_FRAC = 0.9  # of the limit is left: a store at its limit would otherwise delete something at every step
_CHUNK = 500  # episodes deleted in one transaction, for which other writers wait


class EpisodeParams(Protocol):
    """The sections of `params.yaml` that a replay needs."""

    @property
    def world(self) -> BaseModel: ...

    @property
    def agent(self) -> BaseModel: ...


@contextlib.contextmanager
def open_traces(stage: str, *, key: str, params: EpisodeParams) -> Iterator[Record]:
    """Yields the function that takes a stage's episodes, which are written when the block ends,
    however it ends. It does nothing where traces are off. Raises ConfigurationError where
    `POSTTRAIN_TRACES` or its size limit asks for what cannot be."""
    writer = _open_writer(stage, key=key, params=params)
    if writer is None:
        yield lambda _: None
        return
    try:
        yield writer.record
    finally:
        writer.close()


class TraceWriter:
    """Writes the episodes of one run. Where writing fails, it calls `warn` and drops the rest."""

    def __init__(self, path: Path, run: Run, *, max_bytes: int, warn: Callable[[str], None]) -> None:
        """Raises as `open_to_write`."""
        self._path, self._run, self._max_bytes, self._warn = path, run, max_bytes, warn
        self._connection = open_to_write(path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="traces")
        # Bounded, so that a slow disk delays the stage instead of filling its memory.
        self._waiting: deque[Future[None]] = deque()
        self._num_written = 0
        self._is_off = False
        self._packed_tasks: dict[str, tuple[Task, Row]] = {}

    def record(self, episodes: Sequence[TracedEpisode]) -> None:
        """Queue episodes; returns before they are written."""
        for start in range(0, len(episodes), _BATCH):
            if len(self._waiting) >= _MAX_WAITING:
                self._waiting.popleft().result()
            self._waiting.append(self._thread.submit(self._write, episodes[start : start + _BATCH]))

    def flush(self) -> None:
        """Returns when everything handed over so far is written."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """Returns when everything is written."""
        self._thread.shutdown()
        # On a full disk the write-ahead log stays, and the next connection writes it back.
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self.flush()

    def _write(self, batch: Sequence[TracedEpisode]) -> None:
        if self._is_off:
            return
        try:
            with typed_errors(self._path):
                with transaction(self._connection):
                    self._insert(batch)
                make_room(self._connection, max_bytes=self._max_bytes)
        except StageError as error:
            self._is_off = True
            self._warn(f"no more traces of this run, the stage goes on: {error}")

    def _insert(self, batch: Sequence[TracedEpisode]) -> None:
        """Insert a batch. Rows that another process may have deleted meanwhile (the run, tasks) are
        put back in the same transaction."""
        run, execute = self._run_id(), self._connection.execute
        tasks = {traced.task.task_id: self._task_id(traced.task) for traced in batch}
        for traced in batch:
            self._num_written += 1
            row = (run, self._num_written, tasks[traced.task.task_id], *pack_filters(traced))
            episode = execute(f"INSERT INTO episodes VALUES (null{', ?' * len(row)})", row).lastrowid
            execute("INSERT INTO bodies VALUES (?, ?, ?, ?, ?)", (episode, *pack_body(traced)))
            calls = [(episode, *call) for call in pack_calls(traced)]
            self._connection.executemany("INSERT INTO calls VALUES (?, ?, ?)", calls)

    def _run_id(self) -> int:
        run = self._run
        row = (run.uid, run.stage, run.key, float(run.started_at), to_json(run.settings))
        return self._id_of("runs", "uid", row)

    def _task_id(self, task: Task) -> int:
        known = self._packed_tasks.get(task.task_id)
        if known is None or known[0] is not task:
            known = self._packed_tasks[task.task_id] = (task, pack_task(task))
        return self._id_of("tasks", "digest", known[1])

    def _id_of(self, table: str, unique: str, row: Row) -> int:
        """Select by the first column, or insert. `INSERT OR IGNORE` uses up a number each time."""
        found = self._connection.execute(f"SELECT id FROM {table} WHERE {unique} = ?", row[:1]).fetchone()
        if found:
            return int(found[0])
        return self._connection.execute(f"INSERT INTO {table} VALUES (null{', ?' * len(row)})", row).lastrowid or 0


def _open_writer(stage: str, *, key: str, params: EpisodeParams) -> TraceWriter | None:
    def warn(message: str) -> None:
        print(f"[{stage}] {message}", file=sys.stderr, flush=True)

    location = trace_location()
    if location is None:
        return None
    settings = {"world": params.world.model_dump(mode="json"), "agent": params.agent.model_dump(mode="json")}
    run = Run(uuid.uuid4().hex, stage, key, time.time(), settings)
    max_bytes = max_store_bytes()
    try:
        try:
            return TraceWriter(location.path, run, max_bytes=max_bytes, warn=warn)
        except DataError as error:
            if location.is_asked:  # a file that a person named may be anything: it is left where it is
                raise
            warn(f"{error}. It is kept as {set_aside(location.path)}, and a new store begun")
            return TraceWriter(location.path, run, max_bytes=max_bytes, warn=warn)
    except StageError as error:
        if location.is_asked and isinstance(error, ConfigurationError):
            raise
        warn(f"no traces of this run, the stage goes on: {error}. {VARIABLE}=off turns them off without a word")
        return None


def make_room(connection: sqlite3.Connection, *, max_bytes: int) -> int:
    """Delete episodes and recorded exchanges, oldest first, until nine tenths of `max_bytes` are in
    use, where the file is larger, and shrink the file; returns how many episodes were deleted.
    Runs, tasks and tools that no episode needs any more go too: a run that still writes puts its
    own row back."""
    if file_bytes(connection) <= max_bytes:
        return 0
    num_deleted = 0
    runs = connection.execute("SELECT id, started_at FROM runs ORDER BY started_at, id").fetchall()
    for run, started_at in (*runs, (0, math.inf)):
        while _used_bytes(connection) > _TARGET_FRAC * max_bytes and delete_oldest(connection, before=started_at):
            pass
        while _used_bytes(connection) > _TARGET_FRAC * max_bytes and (chunk := _delete_chunk(connection, run)):
            num_deleted += chunk
    with transaction(connection):
        connection.execute("DELETE FROM tasks WHERE id NOT IN (SELECT task FROM episodes)")
        connection.execute("DELETE FROM runs WHERE NOT EXISTS (SELECT 1 FROM episodes WHERE run = runs.id)")
    num_excess = _pragma(connection, "page_count") - max_bytes // _pragma(connection, "page_size")
    # `execute` would free one or two pages: the pragma frees one at each step of its statement.
    connection.executescript(f"PRAGMA incremental_vacuum({max(num_excess, 1)})")
    # PASSIVE waits for no reader; where one is in the way, the last connection to close does it.
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return num_deleted


def file_bytes(connection: sqlite3.Connection) -> int:
    """Size of the store once its write-ahead log is written back."""
    return _pragma(connection, "page_count") * _pragma(connection, "page_size")


def _used_bytes(connection: sqlite3.Connection) -> int:
    return file_bytes(connection) - _pragma(connection, "freelist_count") * _pragma(connection, "page_size")


def _delete_chunk(connection: sqlite3.Connection, run: int) -> int:
    """Delete the run's first episodes; returns how many, 0 when none is left."""
    first = "SELECT id FROM episodes WHERE run = ? ORDER BY number LIMIT ?"
    episodes = json.dumps([episode for (episode,) in connection.execute(first, (run, _CHUNK))])
    num_deleted = 0  # counted, because a damaged index may name rows that are not there
    with transaction(connection):
        for table, column in (("calls", "episode"), ("bodies", "episode"), ("episodes", "id")):
            deletion = f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
            num_deleted = connection.execute(deletion, (episodes,)).rowcount
    return num_deleted


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
