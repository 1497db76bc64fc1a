"""The peer of the rollout benchmarks: TRL's own tool loop, `GRPOTrainer` with
`environment_factory`, on the same model, tasks, tools and reward.

Each task offers its own tools, so each set of tools is an environment class of its own, as TRL
wants it: methods with hints and docstrings.
"""

import inspect
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from posttrain.models.codec import ChatCodec
from posttrain.models.loading import CHECKPOINTING
from posttrain.models.optimizers import build_optimizer
from posttrain.rewards.total import RuleReward
from posttrain.train.online.params import OnlineParams
from posttrain.types import Message, Outcome, StopReason, Task, ToolCall, Trajectory
from posttrain.worlds.grading import completed
from posttrain.worlds.protocol import Domain, World
from posttrain.worlds.tools import Tool, ToolError, error_text

_PYTHON_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list[str]}
# As transformers reads messages back: Hermes' calls, ended by this template's marker.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|end\|>", "content": "text"},
    },
}


class TrlPeer(GRPOTrainer):  # type: ignore[misc]  # trl is untyped
    """Counts what it plays. `written` has for each step the tokens that the agent wrote, `play_s`
    what playing and scoring took by `clock`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.clock: Callable[[], float] = time.process_time
        self.written: list[int] = []
        self.play_s: list[float] = []
        super().__init__(*args, **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        start = self.clock()
        generated = super()._generate(*args, **kwargs)
        self.play_s.append(self.clock() - start)
        completion_ids, tool_mask = generated[1], generated[2]
        self.written.append(sum(map(sum, tool_mask)) if tool_mask else sum(map(len, completion_ids)))
        return generated

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        start = self.clock()
        rewards = super()._calculate_rewards(*args, **kwargs)
        self.play_s[-1] += self.clock() - start
        return rewards


def make_peer(
    model: Any,
    codec: ChatCodec,
    *,
    domain: Domain,
    tasks: Sequence[Task],
    reward: RuleReward,
    params: OnlineParams,
    max_steps: int,
    folder: Path,
) -> TrlPeer:
    """A trainer whose every step plays `params.tasks_per_step` of the tasks, in their order, with a
    rate too small to change the model."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    tokenizer = codec.tokenizer
    tokenizer.response_template = RESPONSE_TEMPLATE
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "call.function.arguments +", "(call.function.arguments | tojson) +"
    )
    by_id = {task.task_id: task for task in tasks}
    environments = {",".join(sorted(task.tools)): _environment(domain, by_id, sorted(task.tools)) for task in tasks}
    used = [tasks[index % len(tasks)] for index in range(max_steps * params.tasks_per_step)]
    rows = [
        {
            "prompt": [{"role": "user", "content": task.messages[-1].content}],
            "task_id": task.task_id,
            "environment": ",".join(sorted(task.tools)),
        }
        for task in used
    ]

    def graded(task: Task, messages: tuple[Message, ...]) -> Trajectory:
        """Grade by a fresh world: TRL's is gone, and those of this benchmark never change."""
        played, world = Trajectory(task.task_id, messages, StopReason.DONE), domain.open(task)
        outcome = world.grade(played)
        assert isinstance(outcome, Outcome), "the benchmark's world grades at once"
        return replace(played, outcome=completed(outcome, played, world.tools()))

    def rule_reward(completions: Sequence[Sequence[dict[str, Any]]], task_id: Sequence[str], **_: Any) -> list[float]:
        pairs = [(by_id[one], messages) for one, messages in zip(task_id, completions, strict=True)]
        scored = [reward.score(graded(task, _messages(task, messages)), task) for task, messages in pairs]
        return [trajectory.reward or 0.0 for trajectory in scored]

    batch_size = params.tasks_per_step * params.group_size
    trainer = TrlPeer(
        model=model,
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=max_steps,
            learning_rate=1e-9,
            lr_scheduler_type="constant",
            per_device_train_batch_size=batch_size // 4,  # faster than the batch in one piece
            gradient_accumulation_steps=4,
            num_generations=params.group_size,
            max_completion_length=384,
            max_tool_calling_iterations=5,
            shuffle_dataset=False,
            train_sampling_strategy="sequential",
            temperature=params.temperature,
            top_k=0,
            beta=0.0,
            loss_type="dapo",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            log_level="error",
            logging_steps=10_000,
            **{CHECKPOINTING: False},
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
        ),
        reward_funcs=rule_reward,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=environments,
        optimizers=(build_optimizer(model, "muon", 1e-9), None),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _messages(task: Task, completion: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    """TRL's conversation as ours; its calls have no ids and their arguments are parsed."""
    messages, num_calls, num_results = list(task.messages), 0, 0
    for message in completion:
        if message["role"] == "tool":
            num_results += 1
            messages.append(Message("tool", message["content"], tool_call_id=f"call_{num_results}"))
            continue
        calls = []
        for call in message.get("tool_calls") or []:
            num_calls += 1
            calls.append(
                ToolCall(f"call_{num_calls}", call["function"]["name"], json.dumps(call["function"]["arguments"]))
            )
        messages.append(
            Message("assistant", message.get("content") or "", message.get("reasoning_content"), tuple(calls))
        )
    return tuple(messages)


def _environment(domain: Domain, tasks: dict[str, Task], tool_names: Sequence[str]) -> type:
    def reset(self: Any, task_id: str, **_: Any) -> None:
        world: World = domain.open(tasks[task_id])
        self._tools = world.tools()

    return type("Environment", (), {"reset": reset, **{name: _method(domain.tools[name]) for name in tool_names}})


def _method(tool: Tool) -> Callable[..., str]:
    """A method with the tool's name, hints and documentation, from which TRL derives the schema."""

    def method(self: Any, **arguments: Any) -> str:
        try:
            return str(self._tools[tool.name].call(json.dumps(arguments)))
        except ToolError as error:
            return error_text(error)

    properties = tool.parameters["properties"]
    hints = {name: _PYTHON_TYPES[schema["type"]] for name, schema in properties.items()}
    required = set(tool.parameters["required"])
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hint,
            default=inspect.Parameter.empty if name in required else None,
        )
        for name, hint in hints.items()
    ]
    method.__name__ = method.__qualname__ = tool.name
    method.__doc__ = (
        tool.description
        + "\n\nArgs:\n"
        + "\n".join(f"    {name}: {schema.get('description', name)}" for name, schema in properties.items())
    )
    method.__annotations__ = {**hints, "return": str}
    method.__signature__ = inspect.Signature(
        [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *parameters]
    )  # type: ignore[attr-defined]
    return method
