"""One node of the graph from the question whether it is up to date to its entry in `dvc.lock`: from
the run cache, or as a job in a snapshot.

Knows DVC's side (the rest of `posttrain.pipeline`) and the pools (`posttrain.dispatch`), and not
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
from time import monotonic
from typing import Literal

from posttrain.dispatch.backend import JobStatus
from posttrain.dispatch.cancel import PATIENCE_S
from posttrain.dispatch.cleanup import KEYS, SNAPSHOTS, Cleaning, limits_of
from posttrain.dispatch.dispatcher import Work
from posttrain.dispatch.settings import DispatchSettings, load_settings
from posttrain.dispatch.submitter_lock import Owner
from posttrain.pipeline.dedup_lock import hold_key
from posttrain.pipeline.graph import StageNode, is_current, read_tree
from posttrain.pipeline.remote.storage import restore
from posttrain.pipeline.results import record_result
from posttrain.pipeline.snapshot import Snapshot, freeze
from posttrain.pipeline.targets import Target, Targets
from posttrain.provenance.cache_integrity import forget_stale_hashes
from posttrain.provenance.code_version import VARIABLE as VERSION
from posttrain.provenance.code_version import read_version
from posttrain.provenance.costs import NUM_GPUS
from posttrain.provenance.receipts import settle
from posttrain.provenance.run_cache import take_over_runs
from posttrain.provenance.wandb_variables import wandb_variables
from posttrain.runtime.exits import Interrupted, StageError
from posttrain.runtime.redaction import redact
from posttrain.runtime.state import RUNS, STATE_DIR, TRACES, private_folder, remove_tree
from posttrain.traces.location import trace_location
from posttrain.traces.merge import import_store

NUM_TAIL_LINES = 20
_CLEAN_WITHIN_S = 0.01
_LOG = logging.getLogger(__name__)
logging.getLogger("dvc").setLevel(
    logging.WARNING
)  # else each landing is told twice, by DVC's handler and by Prefect's, and is no news


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """How a node ended. `reason` is for a person, empty where all is well; `job` names what ran it,
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
        self._root = root.resolve()
        state = private_folder((state or self._root / STATE_DIR).resolve())
        limits = limits_of()
        self._settings = settings or load_settings(self._root)
        self._state, self._snapshots, self._keys = state, private_folder(state / SNAPSHOTS), state / KEYS
        self._owner = Owner(state / RUNS)
        self._targets = Targets(self._settings, root=self._root, state=state, owner=self._owner.name)
        self._cleaning = Cleaning(
            state, self._targets.records, limits, self._owner, take_out=lambda tree: self._take_traces(tree, _LOG.info)
        )
        self._forget_the_dead()
        settle(self._root, _LOG.warning)
        forget_stale_hashes(self._root, _LOG.warning)
        take_over_runs(self._root)
        self.nodes, self._current = read_tree(self._root)
        if settings is None:
            self._settings.check_stages({node.stage for node in self.nodes})
        self._recorded: set[str] = set()
        self._writes = threading.Lock()  # DVC allows one at a time in a folder
        self._stopped = threading.Event()
        self._has_run_jobs = self._has_told = False
        self._num_running, self._is_idle = 0, threading.Condition()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def run(
        self,
        node: StageNode,
        tell: Callable[[str], None],
        watch: Callable[[JobStatus, int], None] = lambda _status, _num_preempted: None,
    ) -> NodeOutcome:
        """`tell` gets the job's output line by line, and what happens to it; `watch` as
        `Dispatcher.run` has it. The node's upstream is up to date.

        Raises Interrupted after `stop`.
        """
        started_s = monotonic()
        with self._counted():
            try:
                outcome = self._run(node, tell, watch, started_s)
            except StageError as error:
                outcome = NodeOutcome("failed", monotonic() - started_s, str(error), error.code)
            except OSError as error:  # a full disk, a file that went while the tree was copied
                outcome = NodeOutcome(
                    "failed",
                    monotonic() - started_s,
                    f"{node.name} could not be prepared or recorded: {error}",
                    Interrupted.code,
                )
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
            self._is_idle.wait_for(lambda: not self._num_running, PATIENCE_S)

    def close(self) -> None:
        """After the last node: this run waits for nothing any more, and what dead ones waited for
        and it did not want is given up."""
        with _never_mind():
            self._cleaning.end_abandoned(self._targets.local_pool)
            if (
                self._has_run_jobs
            ):  # who adds to what lies there takes away more than that; a run of seconds waits for no disk
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

    def _forget_the_dead(self) -> None:
        """What runs that were killed have left; trees of their jobs that are not known to be over
        are still wanted."""
        with _never_mind():
            self._cleaning.kill_lost(self._targets.local_pool)
            self._cleaning.clean(within_s=_CLEAN_WITHIN_S)

    def _is_current(self, node: StageNode) -> bool:
        """Whether `dvc.lock` has it as it is; DVC was asked about the whole graph at the start, and
        is again once something before it has landed."""
        if not self._recorded.intersection(node.upstream):
            return node.name in self._current
        with self._writes:
            return is_current(self._root, node.name)

    def _run(
        self, node: StageNode, tell: Callable[[str], None], watch: Callable[[JobStatus, int], None], started_s: float
    ) -> NodeOutcome:
        if self._is_current(node):
            return NodeOutcome("cached", monotonic() - started_s)
        folder = self._snapshots / f".{self._owner.name}-{uuid.uuid4().hex}"
        try:
            with self._writes:
                frozen = freeze(self._root, node.name, folder, state=self._state)
            if frozen.left_out and not self._has_told:
                self._has_told = True  # once a run
                tell(
                    f"the job does not see {', '.join(frozen.left_out[:5])}{' …' * (len(frozen.left_out) > 5)}: "
                    "neither tracked by git nor declared, or a link to a folder, which DVC does not follow"
                )
            target = self._targets.of(node.stage)
            with hold_key(self._keys, frozen.key, tell, is_stopped=lambda: self.is_stopped) as has_waited:
                is_left = target.dispatcher.has_job(
                    frozen.key
                )  # by a run that died: its end is read, though its result may be there already
                if not is_left and (has_waited or target.storage.has_result(frozen)) and restore(frozen):
                    self._take_traces(frozen.folder, tell)
                    return self._record(frozen, NodeOutcome("cached", monotonic() - started_s))
                return self._run_as_job(node, target, frozen, tell, watch, started_s)
        finally:
            remove_tree(folder)

    def _run_as_job(
        self,
        node: StageNode,
        target: Target,
        frozen: Snapshot,
        tell: Callable[[str], None],
        watch: Callable[[JobStatus, int], None],
        started_s: float,
    ) -> NodeOutcome:
        self._has_run_jobs = True
        name = f"{node.name}-{frozen.key[:10]}"

        def forget_attempts() -> None:
            for old in self._snapshots.glob(f"{glob.escape(name)}-*"):
                self._take_traces(old, tell)
                remove_tree(old)

        def prepare(attempt: int) -> Path:
            forget_attempts()  # those before are over
            target.storage.prepare(frozen, folder := self._snapshots / f"{name}-{attempt}", attempt)
            return folder

        tail: deque[str] = deque(maxlen=NUM_TAIL_LINES)

        def follow(line: str) -> None:
            shown = redact(line)
            tail.append(shown)
            tell(shown)

        command = target.storage.command(frozen)
        version, resources = read_version(self._root), self._settings.resources_of(node.stage)
        told = {
            VERSION: str(version),
            NUM_GPUS: str(resources.gpus),
            **wandb_variables(self._root, version=version),
            **target.environment,
            **self._settings.environment_of(node.stage),
        }
        work = Work(node.name, frozen.key, command, prepare, resources, told)
        try:
            end = target.dispatcher.run(work, tell, follow=follow, watch=watch, is_stopped=self._stopped.is_set)
        except Interrupted:
            if not target.dispatcher.has_job(frozen.key):  # cancelled, and dead
                forget_attempts()
            raise
        ran = NodeOutcome(
            "completed",
            monotonic() - started_s,
            job=end.record.name,
            target=end.record.target,
            num_preempted=end.num_preempted,
            tail=tuple(tail),
        )
        if not target.dispatcher.owns(end.record):
            why = (
                f"another run has taken {end.record.name} over, or started it again: "
                "what it brings is the other's to land"
            )
            return replace(ran, state="superseded", reason=why, exit_code=Interrupted.code)
        try:
            left = target.storage.collect(frozen, end.record.folder, is_good=end.is_good)
            self._take_traces(left.folder, tell)
            if not end.is_good:
                return replace(ran, state="failed", reason=end.reason, exit_code=end.status.exit_code)
            return self._record(left, ran)
        finally:
            remove_tree(end.record.folder)

    def _take_traces(self, folder: Path, tell: Callable[[str], None]) -> None:
        """What a job elsewhere has recorded, into the store here; no result depends on it."""
        location = trace_location()
        if location is None:
            return
        for store in sorted((folder / STATE_DIR).glob(f"**/{TRACES}")):
            try:
                tell(f"{import_store(self._root / location.path, store)} episodes are in the trace store")
            except StageError as error:
                tell(f"the traces of a job were not taken in: {error}")

    def _record(self, snapshot: Snapshot, outcome: NodeOutcome) -> NodeOutcome:
        with self._writes:
            recorded = record_result(self._root, snapshot)
        if recorded.is_recorded:
            self._recorded.add(snapshot.stage)
            return outcome
        why = (
            f"{', '.join(recorded.changed)} changed while it ran: its result belongs to the old values and is "
            "kept in the run cache, where taking "
            "the edit back finds it. Run again for the new ones"
        )
        return replace(outcome, state="superseded", reason=why, exit_code=Interrupted.code)


@contextlib.contextmanager
def _never_mind() -> Iterator[None]:
    """Around cleaning: no run fails because something old cannot be removed."""
    try:
        yield
    except (OSError, sqlite3.Error, StageError) as error:
        _LOG.warning("not all that old runs have left could be removed: %s", error)
