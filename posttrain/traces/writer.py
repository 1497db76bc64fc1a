"""Writes a stage's episodes to the trace store from a thread of its own, behind a bounded queue.

Traces may fail and the stage may not: a full or broken disk ends the tracing of this process with
one line on stderr. A damaged store at the default place is set aside, and a new one begun. Where a
person named a place that cannot be (`POSTTRAIN_TRACES` on a network mount), the stage refuses to
start; at the default place it goes on without traces.
"""

import contextlib
import queue
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from posttrain.runtime.exits import ConfigurationError, DataError, StageError
from posttrain.runtime.sqlite import transaction
from posttrain.traces.eviction import make_room
from posttrain.traces.location import VARIABLE, max_store_bytes, trace_location
from posttrain.traces.packing import PackedEpisode, Row, pack, pack_task, to_json
from posttrain.traces.store import damaged, open_to_write, set_aside, typed_errors
from posttrain.traces.values import Run, TracedEpisode
from posttrain.types import Task

Record = Callable[[Sequence[TracedEpisode]], None]
_BATCH = 128  # episodes in one transaction: a step of the default run
_MAX_WAITING = 64  # batches; a stage that is ahead of the disk by more waits for it


class EpisodeParams(Protocol):
    """The sections of `params.yaml` that a replay needs."""

    @property
    def world(self) -> BaseModel: ...

    @property
    def agent(self) -> BaseModel: ...


@contextlib.contextmanager
def open_traces(stage: str, *, key: str, params: EpisodeParams) -> Iterator[Record]:
    """Context manager around a stage: yields the function that takes its episodes. All of them are
    written when the block ends, however it ends. The function does nothing where traces are off.

    Raises ConfigurationError where `POSTTRAIN_TRACES` or its size limit asks for what cannot be.
    """
    writer = _open_writer(stage, key=key, params=params)
    if writer is None:
        yield lambda _: None
        return
    try:
        yield writer.record
    finally:
        writer.close()


class TraceWriter:
    """Writes the episodes of one run. Once the store cannot be written any more, it calls `warn`
    and drops what follows."""

    def __init__(self, path: Path, run: Run, *, max_bytes: int, warn: Callable[[str], None]) -> None:
        """Raises as `open_to_write`."""
        self._path, self._run, self._max_bytes, self._warn = path, run, max_bytes, warn
        self._connection = open_to_write(path)
        # Bounded, so that a slow disk delays the stage instead of filling its memory.
        self._waiting: queue.Queue[Sequence[TracedEpisode] | None] = queue.Queue(_MAX_WAITING)
        self._num_written = 0
        self._is_off = False
        self._bug: Exception | None = None
        self._packed_tasks: dict[str, tuple[Task, Row]] = {}
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def record(self, episodes: Sequence[TracedEpisode]) -> None:
        """Queue episodes; returns before they are written."""
        self._raise_bug()
        for start in range(0, len(episodes), _BATCH):
            self._waiting.put(episodes[start : start + _BATCH])

    def flush(self) -> None:
        """Returns when everything handed over so far is written."""
        self._waiting.join()
        self._raise_bug()

    def close(self) -> None:
        """Returns when everything is written."""
        self._waiting.put(None)
        self._thread.join()
        self._raise_bug()

    def _raise_bug(self) -> None:
        if self._bug is not None:
            bug, self._bug = self._bug, None
            raise bug

    def _work(self) -> None:
        while (batch := self._waiting.get()) is not None:
            if not self._is_off:
                self._try_to_write(batch)
            self._waiting.task_done()
        # On a full disk the write-ahead log stays, and the next connection writes it back.
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def _try_to_write(self, batch: Sequence[TracedEpisode]) -> None:
        try:
            packed = [pack(traced) for traced in batch]
            with typed_errors(self._path):
                with transaction(self._connection):
                    run = self._insert(batch, packed)
                make_room(self._connection, max_bytes=self._max_bytes, running=run)
        except StageError as error:
            self._is_off = True
            self._warn(f"no more traces of this run, the stage goes on: {error}")
        except Exception as error:  # it would die with the thread: `record` or `close` raises it
            self._is_off = True
            self._bug = error

    def _insert(self, batch: Sequence[TracedEpisode], packed: Sequence[PackedEpisode]) -> int:
        """Insert a batch; returns the run's id. Rows that another process may have deleted
        meanwhile (the run, tasks, tools) are put back in the same transaction."""
        run = self._run_id()
        tasks = {traced.task.task_id: self._task_id(traced.task) for traced in batch}
        tools = {name: self._tool_id(name) for one in packed for _, _, name, *_ in one.calls}
        (last,) = self._connection.execute(
            "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'episodes'"
        ).fetchone()
        if not isinstance(last, int) or not 0 <= last < 2**62:
            raise damaged(self._path, f"the number of the last episode is {last!r}")
        own = list(enumerate(packed, start=last + 1))
        numbers = range(self._num_written + 1, self._num_written + 1 + len(batch))
        episodes = [
            (episode, run, number, tasks[traced.task.task_id], *one.episode)
            for (episode, one), number, traced in zip(own, numbers, batch, strict=True)
        ]
        self._insert_rows("episodes", episodes)
        self._insert_rows("bodies", [(episode, *one.body) for episode, one in own])
        self._insert_rows("turns", [(episode, *turn) for episode, one in own for turn in one.turns])
        calls = [
            (episode, number, turn, tools[name], *end) for episode, one in own for number, turn, name, *end in one.calls
        ]
        self._insert_rows("calls", calls)
        self._num_written += len(batch)
        return run

    def _insert_rows(self, table: str, rows: Sequence[Row]) -> None:
        if rows:
            self._connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def _run_id(self) -> int:
        run = self._run
        row = (run.uid, run.stage, run.key, float(run.started_at), to_json(run.settings))
        return self._id_of("runs", "uid", run.uid, row)

    def _task_id(self, task: Task) -> int:
        known = self._packed_tasks.get(task.task_id)
        if known is None or known[0] is not task:
            known = self._packed_tasks[task.task_id] = (task, pack_task(task))
        return self._id_of("tasks", "digest", known[1][0], known[1])

    def _tool_id(self, name: str) -> int:
        return self._id_of("tools", "name", name, (name,))

    def _id_of(self, table: str, unique: str, value: str | bytes, row: Row) -> int:
        """Select or insert. Not `INSERT OR IGNORE`, which uses up a number each time."""
        found = self._connection.execute(f"SELECT id FROM {table} WHERE {unique} = ?", (value,)).fetchone()
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
