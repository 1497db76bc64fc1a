"""Played episodes as other tools write them: a file of each format that can be imported, of a world
that is there. What a format has no place for is left out, as in theirs."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posttrain.types import Message, Trajectory

Schemas = Sequence[Mapping[str, Any]]
Writer = Callable[[Trajectory, Schemas], dict[str, Any]]


def openai(played: Trajectory, tools: Schemas) -> dict[str, Any]:
    return {"messages": [message.to_openai() for message in played.messages], "tools": list(tools)}


def anthropic(played: Trajectory, tools: Schemas) -> dict[str, Any]:
    system, rest = _without_system(played)
    messages: list[dict[str, Any]] = []
    for message in rest:
        if message.role == "tool":
            block = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
            if messages[-1]["role"] == "user":
                messages[-1]["content"].append(block)
            else:
                messages.append({"role": "user", "content": [block]})
        else:
            text = [{"type": "text", "text": message.content}] if message.content else []
            uses = [
                {"type": "tool_use", "id": made.id, "name": made.name, "input": json.loads(made.arguments)}
                for made in message.tool_calls
            ]
            messages.append({"role": message.role, "content": [*text, *uses]})
    described = [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
        for one in (tool["function"] for tool in tools)
    ]
    return {"system": system, "messages": messages, "tools": described}


def trl(played: Trajectory, tools: Schemas) -> dict[str, Any]:
    """Prompt and completion."""
    asked, answered = _at_first_answer(played)
    return {"prompt": asked, "completion": answered, "tools": json.dumps(list(tools))}


def sharegpt(played: Trajectory, tools: Schemas) -> dict[str, Any]:
    system, rest = _without_system(played)
    turns = []
    for message in rest:
        if message.tool_calls:
            calls = [{"name": made.name, "arguments": json.loads(made.arguments)} for made in message.tool_calls]
            turns.append({"from": "function_call", "value": json.dumps(calls if len(calls) > 1 else calls[0])})
        else:
            role = {"user": "human", "assistant": "gpt", "tool": "observation"}[message.role]
            turns.append({"from": role, "value": message.content})
    return {"conversations": turns, "system": system, "tools": json.dumps([tool["function"] for tool in tools])}


def agentgym(played: Trajectory, tools: Schemas) -> dict[str, Any]:
    """A world of text; the instruction is the first turn."""
    del tools
    system, rest = _without_system(played)
    turns: list[dict[str, Any]] = [
        {"from": "human", "loss": None, "value": system},
        {"from": "gpt", "loss": False, "value": "OK."},
    ]
    for message in rest:
        is_agents = message.role == "assistant"
        turns.append(
            {"from": "gpt" if is_agents else "human", "loss": True if is_agents else None, "value": message.content}
        )
    return {"item_id": played.task_id.replace("/", "_"), "conversations": turns}


def tau_bench(played: Trajectory, tools: Schemas) -> dict[str, Any]:
    del tools
    task = int(played.task_id.rpartition("/")[2])
    traj = [message.to_openai() for message in played.messages]
    return {"task_id": task, "trial": 0, "reward": float(played.is_success), "info": {}, "traj": traj}


def tau2(played: Trajectory, tools: Schemas) -> dict[str, Any]:
    """One simulation of its results file."""
    del tools
    system, rest = _without_system(played)
    messages = []
    for message in rest:
        if message.role == "tool":
            messages.append(
                {"role": "tool", "id": message.tool_call_id, "content": message.content, "requestor": "assistant"}
            )
        else:
            calls = [
                {"id": made.id, "name": made.name, "arguments": json.loads(made.arguments), "requestor": "assistant"}
                for made in message.tool_calls
            ]
            messages.append({"role": message.role, "content": message.content or None, "tool_calls": calls or None})
    return {
        "info": {"environment_info": {"domain_name": "airline", "policy": system}},
        "simulations": [
            {
                "task_id": played.task_id.rpartition("/")[2],
                "trial": 0,
                "termination_reason": "user_stop",
                "reward_info": {"reward": float(played.is_success)},
                "messages": [*messages, {"role": "user", "content": "###STOP###", "tool_calls": None}],
            }
        ],
    }


def bfcl(played: Trajectory, tools: Schemas) -> dict[str, Any]:
    """A turn for each of the user's, a step for each of the agent's messages in it."""
    log: list[dict[str, Any]] = []
    for message in played.messages:
        if message.role == "user":
            log.append({"begin_of_turn_query": [{"role": "user", "content": message.content}]})
        elif message.role == "assistant":
            calls = [{made.name: made.arguments} for made in message.tool_calls]
            step = {"role": "assistant", "content": calls or message.content}
            log[-1][f"step_{len(log[-1]) - 1}"] = [step]
        elif message.role == "tool":
            log[-1][f"step_{len(log[-1]) - 2}"].append({"role": "tool", "content": message.content})
    return {
        "id": played.task_id.rpartition("/")[2],
        "result": [],
        "inference_log": log,
        "function": [tool["function"] for tool in tools],
    }


def _without_system(played: Trajectory) -> tuple[str, Sequence[Message]]:
    if played.messages[0].role == "system":
        return played.messages[0].content, played.messages[1:]
    return "", played.messages


def _at_first_answer(played: Trajectory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    spoken = [message.to_openai() for message in played.messages]
    first = next(index for index, message in enumerate(played.messages) if message.role == "assistant")
    return spoken[:first], spoken[first:]
