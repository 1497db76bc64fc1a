"""Targets of a run: the dispatcher, the storage and the environment for the jobs of each."""

import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from posttrain.dispatch.backend import Backend
from posttrain.dispatch.cleanup import LOGS
from posttrain.dispatch.dispatcher import Dispatcher
from posttrain.dispatch.records import JobRecords
from posttrain.dispatch.settings import DispatchSettings
from posttrain.pipeline.remote.storage import S3, SharedDisk, Storage
from posttrain.runtime.state import JOBS, TRACES, private_folder
from posttrain.traces.store import VARIABLE

_POLL_S, _LOCAL_POLL_S = 0.5, 0.1  # to ask this machine is to read two small files


@dataclass(frozen=True, slots=True)
class Target:
    """One target. `environment` has more variables for its jobs."""

    dispatcher: Dispatcher
    storage: Storage
    environment: dict[str, str]


class Targets:
    """Targets of one run (`owner`) of the tree at `root`, with its jobs' records in `state`; each
    is made when the first stage needs it."""

    def __init__(self, settings: DispatchSettings, *, root: Path, state: Path, owner: str) -> None:
        self._settings, self._root, self._state, self._owner = settings, root, state, owner
        self.records = JobRecords(state / JOBS)
        self._made: dict[str, Target] = {}
        self._lock = threading.Lock()

    def of(self, stage: str) -> Target:
        """Target of a stage, by its name without its item. Raises ConfigurationError where
        infra/dispatch.yaml names no such target."""
        target = self._settings.target_of(stage)
        with self._lock:
            if target not in self._made:
                self._made[target] = self._make(target)
            return self._made[target]

    def local_backend(self, target: str) -> Backend | None:
        """Backend of a target whose jobs run on this machine; None for all others."""
        return self._settings.backend(target, self._root, self._state) if self._settings.is_local(target) else None

    def cancel_all(self) -> None:
        with self._lock:
            places = list(self._made.values())
        for place in places:
            place.dispatcher.cancel_all()

    def _make(self, target: str) -> Target:
        backend, place = self._settings.backend(target, self._root, self._state), self._settings.targets[target]
        is_local = self._settings.is_local(target)
        logs, poll_s = private_folder(self._state / LOGS), _LOCAL_POLL_S if is_local else _POLL_S
        dispatcher = Dispatcher(backend, self.records, target=target, owner=self._owner, logs=logs, poll_s=poll_s)
        python, environment = place.python or sys.executable, place.environment
        if place.storage is not None:
            return Target(dispatcher, S3(place.storage, submitter=self.records.submitter, python=python), environment)
        if is_local:  # its jobs write their traces to the common store; elsewhere they lie with a job's other files
            traces = {} if VARIABLE in os.environ else {VARIABLE: str(self._state / TRACES)}
            # A WANDB_DIR by a relative path is the person's folder, and not the job's.
            runs = {"WANDB_DIR": os.path.abspath(os.environ["WANDB_DIR"])} if os.environ.get("WANDB_DIR") else {}
            environment = traces | runs | environment
        return Target(dispatcher, SharedDisk(python=python), environment)
