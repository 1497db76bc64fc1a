"""A world for TRL's `GRPOTrainer`: environments for `environment_factory`, rows for
`train_dataset`, a function for `reward_funcs`.

Each set of tools that a task offers is an environment class of its own, whose methods run the
world's tools. TRL keeps the conversation, so the record that the world grades is made of it when
the episode has ended. TRL's agent ends its episode with the first message without a call: where a
world has a user who answers, the agent gets a tool `say`, and a call of it is that message.
"""

import asyncio
import inspect
import itertools
import json
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from posttrain.export.world_folder import SAY, ExportedWorld, load_exported, said_by_call
from posttrain.rollout.agent_loops import ToolFailed, run_calls
from posttrain.rollout.episode import Episode, Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.rollout.policy import expert_policy
from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.types import Message, Split, StopReason, Task, ToolCall, ToolOutcome, ToolRun, Trajectory
from posttrain.worlds.protocol import ClosableWorld, ExpertDomain, WorldFailed
from posttrain.worlds.tools import Tool, ToolError, error_text, is_error, json_object, result_text

T = TypeVar("T")
_HINTS = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}
_NOT_TOOLS = ("reset", "get_reward")  # methods of an environment that TRL calls itself
_BROKEN = ('{"error":"the tool is broken"}', ToolRun("", "", "failed"))
_NUM_PROBED = 50  # tasks that the expert plays, to see whether a user answers


class TrlWorld:
    """The world of an exported folder. `stop_ids` are the tokens that end a message, such as
    `{tokenizer.eos_token_id}`: a completion that ends with another was cut off, and is graded as
    that; without any none counts as cut off."""

    def __init__(self, folder: str | Path, *, stop_ids: frozenset[int] = frozenset()) -> None:
        self.world: ExportedWorld = load_exported(Path(folder))
        self._stop_ids, self._tasks = stop_ids, dict[str, Task]()
        self._extra = {SAY.name: SAY} if _has_user(self.world) else {}
        self.environments: dict[str, type] = {}

    def rows(self, split: Split = "rl") -> list[dict[str, Any]]:
        """A row for each task: its opening messages, and the name of its environment, which comes
        to be in `environments`."""
        tasks = self.world.tasks(split)
        self._tasks |= {task.task_id: task for task in tasks}
        return [self._row(task) for task in tasks]

    def reward(
        self,
        completions: Sequence[Sequence[Mapping[str, Any]]],
        completion_ids: Sequence[Sequence[int]],
        environments: Sequence[Any],
        task_id: Sequence[str],
        **_: Any,
    ) -> list[float]:
        """The reward of each episode by params.yaml. A lost one, whose tool or world broke, has the
        mean of its task's others, which is no advantage. Raises Interrupted where all are lost."""
        played = [
            self.world.reward.score(one._recorder.graded(messages, is_cut=self._is_cut(ids)), one._recorder.task)
            for one, messages, ids in zip(environments, completions, completion_ids, strict=True)
        ]
        earned = [(name, one.reward) for name, one in zip(task_id, played, strict=True) if one.reward is not None]
        if not earned:
            raise Interrupted(f"all {len(played)} episodes were lost; the first ended with: {played[0].failure}")

        def mean(name: str) -> float:
            values = [value for other, value in earned if other == name] or [value for _, value in earned]
            return math.fsum(values) / len(values)

        return [mean(name) if one.reward is None else one.reward for name, one in zip(task_id, played, strict=True)]

    def _is_cut(self, ids: Sequence[int]) -> bool:
        return bool(self._stop_ids) and (not ids or ids[-1] not in self._stop_ids)

    def _row(self, task: Task) -> dict[str, Any]:
        name = ",".join(sorted(task.tools))
        if name not in self.environments:
            self.environments[name] = self._environment(task.tools)
        messages = [message.to_openai() for message in task.messages]
        if all(message["role"] != "user" for message in messages):  # the world's opening is put behind the last one
            messages.append({"role": "user", "content": ""})
        return {"prompt": messages, "task_id": task.task_id, "environment": name}

    def _environment(self, names: Sequence[str]) -> type:
        if refused := [name for name in names if name in (*_NOT_TOOLS, *self._extra) or name.startswith("_")]:
            raise ConfigurationError(f"TRL's environments cannot have a tool {refused[0]!r}: rename it in the world")

        def reset(environment: Any, task_id: str, **_: Any) -> str | None:
            """Begin an episode; what the world opens it with is put behind the prompt."""
            if hasattr(environment, "_recorder"):
                environment._recorder.close()
            environment._recorder = recorder = _Recorder(self.world, self._tasks[task_id])
            return recorder.opened()

        tools = [*(self.world.domain.tools[name] for name in names), *self._extra.values()]
        return type("WorldEnvironment", (), {"reset": reset, **{tool.name: _method(tool) for tool in tools}})


class _Recorder:
    """One episode: runs its calls, and records and grades what TRL says was said."""

    def __init__(self, world: ExportedWorld, task: Task) -> None:
        self.task, self._failure = task, ""
        self._episode = Episode(task.task_id, task, world.domain.open(task), 0, world.limits)
        self._runner: asyncio.Runner | None = asyncio.Runner()
        self._num_calls = 0
        self._ended: tuple[int, StopReason] | None = None  # by the call of that number

    def opened(self) -> str | None:
        self._run(self._episode.open())
        said = [message.content for message in self._episode.messages[len(self.task.messages) :]]
        return "\n".join(said) or None

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        episode = self._episode
        self._num_calls += 1
        if self._ended is not None:
            return error_text(ToolError("the episode is over"))
        if said := said_by_call(name, arguments, episode.tools):
            answer = self._run(episode.user_reply(said))
            ended = None if answer is not None else StopReason.DONE
            content = result_text({"user": answer})
        else:
            made = ToolCall("", name, json.dumps(arguments, ensure_ascii=False))
            [(content, run)] = self._run(run_calls([made], episode.tools, episode.limits)) or [_BROKEN]
            is_last = run.outcome == "ok" and episode.tools[name].ends_episode
            ended = StopReason.STOP_TOOL if is_last else None
        if ended is not StopReason.STOP_TOOL and episode.is_over():
            ended = StopReason.WORLD_OVER
        self._ended = None if ended is None else (self._num_calls, ended)
        return content

    def graded(self, completion: Sequence[Mapping[str, Any]], *, is_cut: bool) -> Trajectory:
        """The record up to the end of the episode, with the world's verdict, also of one that was
        cut off."""
        episode, num_calls = self._episode, 0
        stop = StopReason.TOKEN_LIMIT if is_cut else StopReason.DONE
        for place, message in enumerate(completion):
            if message["role"] != "assistant":
                continue
            made = message.get("tool_calls") or []
            results = list(itertools.takewhile(lambda one: one["role"] == "tool", completion[place + 1 :]))
            self._add(message, made, [str(one["content"]) for one in results])
            num_calls += len(made)
            if self._ended is not None and num_calls >= self._ended[0]:
                stop = self._ended[1]
                break
            if made and place + len(results) + 1 == len(completion) and not is_cut:
                stop = StopReason.TURN_LIMIT  # or no room: TRL does not tell
        graded = None if self._failure else self._run(episode.graded(episode.trajectory(stop)))
        self.close()
        return graded or episode.trajectory(StopReason.TOOL_FAILED, self._failure)

    def close(self) -> None:
        if self._runner is not None:
            if isinstance(self._episode.world, ClosableWorld):
                self._runner.run(self._episode.world.close())
            self._runner.close()
            self._runner = None

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """None where the world or its tool broke: the episode is lost."""
        assert self._runner is not None, "TRL resets an environment before it calls its methods"
        try:
            return self._runner.run(coroutine)
        except (ToolFailed, WorldFailed) as error:
            self._failure = str(error)
            return None

    def _add(self, message: Mapping[str, Any], made: Sequence[Mapping[str, Any]], results: Sequence[str]) -> None:
        episode, functions = self._episode, [call["function"] for call in made]
        name, given = (functions[0]["name"], functions[0]["arguments"]) if len(functions) == 1 else ("", None)
        if said := said_by_call(name, given, episode.tools):
            episode.add_reply(Reply(said))
            if results and (answer := (json_object(results[0]) or {}).get("user")) is not None:
                episode.messages.append(Message("user", answer))
            return
        calls = tuple(ToolCall("", one["name"], json.dumps(one["arguments"], ensure_ascii=False)) for one in functions)
        content, thought = str(message.get("content") or ""), message.get("reasoning_content") or None
        added = episode.add_reply(Reply(Message("assistant", content, thought, calls)))
        assert added is not None
        runs = []
        for call, given in zip(added.tool_calls, results, strict=False):
            # TRL's own error, such as of a tool that is not there, is Python and no JSON
            result = error_text(ToolError(given)) if given.startswith("{'error': ") else given
            outcome: ToolOutcome = "error" if is_error(result) else "ok"
            runs.append((result, ToolRun(call.id, call.name, outcome)))
        episode.add_results(runs)


def _has_user(world: ExportedWorld) -> bool:
    """True where a user answers the flawless expert, or where there is none to ask."""
    domain = world.domain
    if not isinstance(domain, ExpertDomain):
        return True
    tasks = world.tasks("rl")[:_NUM_PROBED]
    expert = expert_policy(domain, is_flawless=True, reasoning_frac=0.0)
    played = run_episodes(expert, tasks, domain=domain, limits=world.limits, seeds=[0] * len(tasks))
    return any(
        message.role == "user" and index > one.turns[0].message_index
        for one in played
        for index, message in enumerate(one.messages)
        if one.turns and one.turns[0].message_index is not None
    )


def _method(tool: Tool) -> Callable[..., str]:
    """A method with the tool's name, hints and docstring, from which TRL derives its schema."""

    def method(environment: Any, **arguments: Any) -> str:
        return str(environment._recorder.call(tool.name, arguments))

    properties = tool.parameters.get("properties", {})
    hints = {name: _hint(schema) for name, schema in properties.items()}
    required, kind = set(tool.parameters.get("required", ())), inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, kind, annotation=hint, default=inspect.Parameter.empty if name in required else None)
        for name, hint in hints.items()
    ]
    described = [f"    {name}: {schema.get('description', name)}" for name, schema in properties.items()]
    method.__name__ = method.__qualname__ = tool.name
    method.__doc__ = "\n".join([tool.description, "", "Args:", *described] if described else [tool.description])
    method.__annotations__ = {**hints, "return": str}
    self_parameter = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = inspect.Signature([self_parameter, *parameters])  # type: ignore[attr-defined]
    return method


def _hint(schema: Mapping[str, Any]) -> Any:
    """The hint that transformers turns into such a schema; Any where there is none."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if schema.get("type") == "array":
        return list[_hint(schema.get("items", {}))]  # type: ignore[misc]
    return _HINTS.get(str(schema.get("type")), Any)
