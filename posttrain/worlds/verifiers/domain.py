"""An environment of verifiers: its own program runs the episode, with our agent as the model behind
an endpoint, and its reward is the grade.

The package does not install beside ours, so a Python that has it, named by
POSTTRAIN_VERIFIERS_PYTHON, runs `bridge.py`: one process for the domain, which ends with this one.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.limits import MAX_REASON_CHARS, reason
from posttrain.types import Message, Outcome, Split, Task, Trajectory, number
from posttrain.worlds.protocol import WorldFailed
from posttrain.worlds.tools import Tool
from posttrain.worlds.verifiers.params import VerifiersParams

PYTHON = "POSTTRAIN_VERIFIERS_PYTHON"
_LOOP = "posttrain.rollout.agents.own_program:loop"


class VerifiersDomain:
    """Starts the process, and lists the tasks. Raises ConfigurationError where it cannot."""

    tools: Mapping[str, Tool] = {}
    scores: Sequence[str] = ("progress",)

    def __init__(self, params: VerifiersParams) -> None:
        self.name, self._params = params.environment.rpartition("/")[2], params
        last = max(params.indices(split).stop for split in ("sft", "rl", "dev", "test"))
        self._bridge = _Bridge(params.environment, params.config)
        try:
            self._opened = self._bridge.ask(load=last).result()
        except WorldFailed as error:
            raise ConfigurationError(f"world.environment {params.environment!r} cannot be loaded: {error}") from error

    def tasks(self, split: Split, count: int) -> list[Task]:
        """The goal of a task is its number."""
        if split == "test_paraphrase":
            return []
        indices = [index for index in self._params.indices(split) if index < len(self._opened)]
        if count > len(indices):
            raise ValueError(f"{count} {split} tasks are asked for, and {self.name} has {len(indices)} from there on")
        return [self._task(split, index) for index in indices[:count]]

    def open(self, task: Task) -> "VerifiersWorld":
        return VerifiersWorld(self._bridge, int(json.loads(task.goal)["index"]), self._params.success_reward)

    def _task(self, split: Split, index: int) -> Task:
        messages = tuple(map(Message.from_openai, self._opened[index]["messages"]))
        labels, goal = {"environment": self.name}, json.dumps({"index": index})
        return Task(f"{self.name}/{index}", split, messages, (), labels=labels, goal=goal, agent_name=_LOOP)


class VerifiersWorld:
    """An episode that verifiers runs. Its tools are called over there, so there are none here."""

    def __init__(self, bridge: "_Bridge", index: int, success_reward: float) -> None:
        self._bridge, self._index, self._success_reward = bridge, index, success_reward
        self._reward: float | None = None

    def tools(self) -> Mapping[str, Tool]:
        return {}

    async def run(self, base_url: str, api_key: str, max_turns: int) -> None:
        """The whole episode, with the agent behind this endpoint. Raises WorldFailed where the
        environment broke by no doing of the agent's."""
        asked = {"run": self._index, "base_url": base_url, "api_key": api_key, "max_turns": max_turns}
        played = await asyncio.wrap_future(self._bridge.ask(**asked))
        if played["reward"] is None:
            raise WorldFailed(f"verifiers gives no reward: {reason('; '.join(played['errors']))}")
        self._reward = number(played["reward"], "the environment's reward")

    def user_reply(self, message: Message) -> None:
        del message

    def grade(self, trajectory: Trajectory) -> Outcome:
        """An episode that a limit of ours ended has no reward of verifiers', and gets 0."""
        del trajectory
        reward = self._reward or 0.0
        success = self._reward is not None and reward >= self._success_reward
        progress = min(1.0, max(0.0, reward / self._success_reward))
        failure = "" if success or self._reward is None else "low_reward"
        return Outcome(success, success, {"progress": progress}, reward=reward, failure=failure)


class _Bridge:
    """The process, and the answers that are waited for."""

    def __init__(self, environment: str, config: Mapping[str, Any]) -> None:
        python, script = os.environ.get(PYTHON, ""), str(Path(__file__).with_name("bridge.py"))
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - kept open
        try:
            self._process = subprocess.Popen(
                [python, "-P", script, environment, json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            raise ConfigurationError(
                f"{PYTHON} is {python!r} and starts no Python ({error.strerror}): the world verifiers needs one that "
                "has the package; infra/trainers/setup.sh makes it"
            ) from error
        self._ids, self._waiting, self._lock = count(), dict[int, Future[Any]](), threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, **request: Any) -> "Future[Any]":
        """The result, or a WorldFailed."""
        future: Future[Any] = Future()
        with self._lock:
            asked = next(self._ids)
            self._waiting[asked] = future
            try:
                assert self._process.stdin is not None
                print(json.dumps({"id": asked, **request}), file=self._process.stdin, flush=True)
            except OSError:
                self._waiting.pop(asked).set_exception(self._gone())
        return future

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["id"])
            if future.set_running_or_notify_cancel():
                if "error" in answer:
                    future.set_exception(WorldFailed(reason(answer["error"])))
                else:
                    future.set_result(answer["result"])
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(self._gone())

    def _gone(self) -> WorldFailed:
        self._errors.seek(0)
        said = self._errors.read().strip()[-MAX_REASON_CHARS:]
        return WorldFailed(f"the process with verifiers has ended; it said: {reason(said)}")
