"""Brings one node of the graph up to date, from the run cache or as a job in a snapshot, and
records its result in `dvc.lock`.

It knows DVC (the rest of `posttrain.pipeline`) and the backends (`posttrain.dispatch`), and not
Prefect.
"""

import contextlib
import glob
import logging
import sqlite3
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Literal

from posttrain.dispatch.backend import JobStatus
from posttrain.dispatch.cleanup import KEYS, SNAPSHOTS, Cleaning
from posttrain.dispatch.dispatcher import CANCEL_PATIENCE_S, Work
from posttrain.dispatch.records import Owner
from posttrain.dispatch.settings import DispatchSettings, load_settings
from posttrain.pipeline.dvc_threads import allow_threads
from posttrain.pipeline.graph import StageNode, is_current, read_tree
from posttrain.pipeline.remote.storage import restore
from posttrain.pipeline.results import record_result
from posttrain.pipeline.snapshot import Snapshot, freeze
from posttrain.pipeline.targets import Target, Targets
from posttrain.provenance.code_version import VARIABLE as VERSION
from posttrain.provenance.code_version import read_version, wandb_variables
from posttrain.provenance.costs import NUM_GPUS
from posttrain.provenance.receipts import apply_receipts
from posttrain.provenance.run_cache import import_verified_runs
from posttrain.runtime.exits import Interrupted, StageError
from posttrain.runtime.locks import held_if_free
from posttrain.runtime.redaction import redact
from posttrain.runtime.state import RUNS, STATE_DIR, TRACES, private_folder, remove_tree
from posttrain.traces.merge import import_store
from posttrain.traces.store import trace_location

NUM_TAIL_LINES = 20
_POLL_S = 0.5
_LOG = logging.getLogger(__name__)
# Otherwise each recorded result is logged twice, by DVC's handler and by Prefect's.
logging.getLogger("dvc").setLevel(logging.WARNING)

_Log = Callable[[str], None]
_Watch = Callable[[JobStatus, int], None]


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """End of a node. `reason` is for a person, empty where all is well; `job` names what ran it,
    empty where nothing had to. `num_preempted` counts the attempts before it that were preempted,
    interrupted or lost."""

    state: Literal["cached", "completed", "failed", "superseded"]
    seconds: float
    reason: str = ""
    exit_code: int | None = 0
    job: str = ""
    target: str = ""
    num_preempted: int = 0
    tail: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.state in ("cached", "completed")


class StageExecutor:
    """Runs nodes of the tree at `root`, several at a time from threads. Made when a flow starts;
    `stop` ends its jobs.

    `state` keeps jobs, their records and the GPU slots: trees that name the same folder share them.
    By default it is the tree's own.
    """

    def __init__(self, root: Path, *, settings: DispatchSettings | None = None, state: Path | None = None) -> None:
        allow_threads()
        self._root = root.resolve()
        state = private_folder((state or self._root / STATE_DIR).resolve())
        self._settings = settings or load_settings(self._root)
        self._state, self._snapshots, self._keys = state, private_folder(state / SNAPSHOTS), state / KEYS
        self._owner = Owner(state / RUNS)
        self._targets = Targets(self._settings, root=self._root, state=state, owner=self._owner.name)
        self._cleaning = Cleaning(
            state, self._targets.records, self._owner, take_out=lambda tree: self._take_traces(tree, _LOG.info)
        )
        self._clean_up()
        apply_receipts(self._root, _LOG.warning)
        import_verified_runs(self._root)
        self.nodes, self._current = read_tree(self._root)
        if settings is None:
            self._settings.check_stages({node.stage for node in self.nodes})
        self._recorded: set[str] = set()
        self._writes = threading.Lock()  # DVC allows one at a time in a folder
        self._stopped = threading.Event()
        self._has_run_jobs = False
        self._num_running, self._is_idle = 0, threading.Condition()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def run(
        self,
        node: StageNode,
        log: _Log,
        watch: _Watch = lambda _status, _num_preempted: None,
    ) -> NodeOutcome:
        """Bring a node up to date whose upstream is. `log` gets the job's output line by line, and
        its events; `watch` as in `Dispatcher.run`. Raises Interrupted after `stop`."""
        started_s = monotonic()
        with self._counted():
            try:
                outcome = self._run(node, log, watch, started_s)
            except StageError as error:
                outcome = NodeOutcome("failed", monotonic() - started_s, str(error), error.code)
            except OSError as error:  # a full disk, a file that went while the tree was copied
                why = f"{node.name} could not be prepared or recorded: {error}"
                outcome = NodeOutcome("failed", monotonic() - started_s, why, Interrupted.code)
        outcome = replace(outcome, reason=redact(outcome.reason))
        if self._stopped.is_set() and not outcome.is_good:
            raise Interrupted(
                f"{node.name} was cancelled, because its run was stopped. Run it again: what is done is kept"
            )
        return outcome

    def stop(self) -> None:
        """Cancel what runs; nothing is started after this. Returns when all is over, or after a
        while: what was just being submitted is cancelled by its own thread."""
        self._stopped.set()
        self._targets.cancel_all()
        with self._is_idle:
            self._is_idle.wait_for(lambda: not self._num_running, CANCEL_PATIENCE_S)

    def close(self) -> None:
        """End the run after the last node: jobs that dead runs waited for are given up."""
        with _logged():
            self._cleaning.end_abandoned(self._targets.local_backend)
            if self._has_run_jobs:  # else nothing was added, and a run of seconds waits for no disk
                self._cleaning.clean()
        self._owner.close()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._is_idle:
            self._num_running += 1
        try:
            yield
        finally:
            with self._is_idle:
                self._num_running -= 1
                self._is_idle.notify_all()

    def _clean_up(self) -> None:
        """Remove what killed runs have left; trees of their jobs that are not known to be over are
        still needed."""
        with _logged():
            self._cleaning.kill_abandoned(self._targets.local_backend)
            self._cleaning.clean()

    def _is_current(self, node: StageNode) -> bool:
        """True if the node is as in `dvc.lock`; DVC was asked about the whole graph at the start,
        and is again once a result upstream was recorded."""
        if not self._recorded.intersection(node.upstream):
            return node.name in self._current
        with self._writes:
            return is_current(self._root, node.name)

    def _run(self, node: StageNode, log: _Log, watch: _Watch, started_s: float) -> NodeOutcome:
        if self._is_current(node):
            return NodeOutcome("cached", monotonic() - started_s)
        folder = self._snapshots / f".{self._owner.name}-{uuid.uuid4().hex}"
        try:
            with self._writes:  # no result is recorded while the tree is copied
                frozen = freeze(self._root, node.name, folder, state=self._state)
            target = self._targets.of(node.stage)
            with lock_key(self._keys, frozen.key, log, is_stopped=lambda: self.is_stopped) as has_waited:
                # A job of a run that died: its end is read, though its result may be there already.
                is_left = target.dispatcher.has_job(frozen.key)
                if not is_left and (has_waited or target.storage.has_result(frozen)) and restore(frozen):
                    self._take_traces(frozen.folder, log)
                    return self._record(frozen, NodeOutcome("cached", monotonic() - started_s))
                return self._run_as_job(node, target, frozen, log, watch, started_s)
        finally:
            remove_tree(folder)

    def _run_as_job(
        self, node: StageNode, target: Target, frozen: Snapshot, log: _Log, watch: _Watch, started_s: float
    ) -> NodeOutcome:
        self._has_run_jobs = True
        name, tail = f"{node.name}-{frozen.key[:10]}", deque[str](maxlen=NUM_TAIL_LINES)

        def prepare(attempt: int) -> Path:
            self._remove_attempts(name, log)  # those before are over
            target.storage.prepare(frozen, folder := self._snapshots / f"{name}-{attempt}", attempt)
            return folder

        def follow(line: str) -> None:
            tail.append(redact(line))
            log(tail[-1])

        command, environment = target.storage.command(frozen), self._environment(node, target)
        work = Work(node.name, frozen.key, command, prepare, self._settings.resources_of(node.stage), environment)
        try:
            end = target.dispatcher.run(work, log, follow=follow, watch=watch, is_stopped=self._stopped.is_set)
        except Interrupted:
            if not target.dispatcher.has_job(frozen.key):  # cancelled, and dead
                self._remove_attempts(name, log)
            raise
        job, seconds = end.record, monotonic() - started_s
        ran = NodeOutcome("completed", seconds, "", 0, job.name, job.target, end.num_preempted, tuple(tail))
        if not target.dispatcher.owns(job):  # or two would record the result at once
            why = f"another run has taken {job.name} over, or started it again, and records its result"
            return replace(ran, state="superseded", reason=why, exit_code=Interrupted.code)
        try:
            left = target.storage.collect(frozen, job.folder, is_good=end.is_good)
            self._take_traces(left.folder, log)
            if not end.is_good:
                return replace(ran, state="failed", reason=end.reason, exit_code=end.status.exit_code)
            return self._record(left, ran)
        finally:
            remove_tree(job.folder)

    def _environment(self, node: StageNode, target: Target) -> dict[str, str]:
        version, reserved = read_version(self._root), self._settings.resources_of(node.stage)
        return {
            VERSION: str(version),
            NUM_GPUS: str(reserved.gpus * reserved.nodes),
            **wandb_variables(self._root, version=version),
            **target.environment,
            **self._settings.environment_of(node.stage),
        }

    def _remove_attempts(self, name: str, log: _Log) -> None:
        for old in self._snapshots.glob(f"{glob.escape(name)}-*"):
            self._take_traces(old, log)
            remove_tree(old)

    def _take_traces(self, folder: Path, log: _Log) -> None:
        """Import a job's traces into the store here; no result depends on them."""
        location = trace_location()
        if location is None:
            return
        for store in sorted((folder / STATE_DIR).glob(f"**/{TRACES}")):
            try:
                log(f"{import_store(self._root / location.path, store)} episodes are in the trace store")
            except StageError as error:
                log(f"the traces of a job were not taken in: {error}")

    def _record(self, snapshot: Snapshot, outcome: NodeOutcome) -> NodeOutcome:
        with self._writes:
            changed = record_result(self._root, snapshot)
        if not changed:
            self._recorded.add(snapshot.stage)
            return outcome
        why = (
            f"{', '.join(changed)} changed while it ran: its result belongs to the old values and is "
            "kept in the run cache, where taking the edit back finds it. Run again for the new ones"
        )
        return replace(outcome, state="superseded", reason=why, exit_code=Interrupted.code)


@contextlib.contextmanager
def lock_key(folder: Path, key: str, log: Callable[[str], None], *, is_stopped: Callable[[], bool]) -> Iterator[bool]:
    """Lock a cache key against threads and processes that share `folder`; yields whether another
    had it before. One run of this machine computes a result, and the next finds it in the run
    cache: experiments beside each other share most of their stages, and each would start them.
    Raises Interrupted once `is_stopped`."""
    path, has_waited = private_folder(folder) / key, False
    while True:
        with held_if_free(path) as is_ours:
            if is_ours:
                yield has_waited
                return
        if is_stopped():
            raise Interrupted("it waited for another run that computes the same, and was stopped. Run it again")
        if not has_waited:
            log("another run of this machine computes the same; waiting for its result")
        has_waited = True
        sleep(_POLL_S)


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Log errors of cleaning: no run fails because something old cannot be removed."""
    try:
        yield
    except (OSError, sqlite3.Error, StageError) as error:
        _LOG.warning("not all that old runs have left could be removed: %s", error)
