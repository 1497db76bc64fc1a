"""The results of tau-bench (`traj`) and of tau2 (`simulations` with `messages`).

In tau2 the user has tools too; the agent sees neither those calls nor their results, so they are
left out. Its greeting at the start is the environment's, and not learnt.
"""

from collections.abc import Mapping
from typing import Any

from posttrain.data.importing.fields import Fields

STOP_TOOLS = ("transfer_to_human_agents",)  # any other call at the end met the limit of steps
_BOOKKEEPING = ("id", "turn_idx", "timestamp", "cost", "usage", "raw_data", "requestor", "error")
_ENDS = {
    "user_stop": "done",
    "agent_stop": "done",
    "max_steps": "turn_limit",
    "too_many_errors": "turn_limit",
    "timeout": "time_limit",
    "agent_error": "turn_limit",  # a message that cannot be used: tau2 counts it as the agent's failure
    "user_error": "tool_failed",  # of the simulated user
    "infrastructure_error": "tool_failed",
}


def looks_like_tau_bench(record: Mapping[str, Any]) -> bool:
    """Its messages stand under `traj`."""
    return "traj" in record


def read_tau_bench(fields: Fields) -> Mapping[str, Any]:
    """`task_id`, `trial`, `reward` and `traj` must be there. Its user says the last word."""
    record = {name: fields.raw(name) for name in ("traj", "task_id", "reward", "trial")}
    if missing := [name for name, value in record.items() if value is None]:
        raise KeyError(missing[0])
    task_id = f"tau_bench-{record['task_id']}"
    return {"messages": record["traj"], "task_id": task_id, "reward": record["reward"], "seed": record["trial"]}


def looks_like_tau2(record: Mapping[str, Any]) -> bool:
    """Messages with how the simulation ended."""
    return "messages" in record and ("termination_reason" in record or "reward_info" in record)


def read_tau2(fields: Fields) -> Mapping[str, Any]:
    """The policy, where the file has it, is the system's text."""
    names = ("messages", "info", "task_id", "reward_info", "seed", "trial", "termination_reason")
    record = {name: fields.raw(name) for name in names}
    messages = [_message(message) for message in record["messages"] if _is_seen(message)]
    if messages and messages[0]["role"] == "assistant":
        messages[0] = {**messages[0], "weight": 0}
    environment, ended = _inner(_inner(record, "info"), "environment_info"), record["termination_reason"]
    return {
        "messages": messages,
        **({"system": environment["policy"]} if environment.get("policy") else {}),
        "task_id": f"{environment.get('domain_name') or 'tau2'}-{record['task_id']}",
        "reward": _inner(record, "reward_info").get("reward"),
        "seed": record["trial"] if record["seed"] is None else record["seed"],
        "stop_reason": _ENDS.get(ended) if isinstance(ended, str) else None,
    }


def _is_seen(message: Any) -> bool:
    """By the agent."""
    if message["role"] == "tool":
        return bool(message.get("requestor") != "user")
    return message["role"] != "user" or bool(message.get("content")) or not message.get("tool_calls")


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    others = {key: value for key, value in message.items() if key not in _BOOKKEEPING}
    if message["role"] == "tool":
        return {**others, "tool_call_id": message.get("id") or message.get("tool_call_id")}
    return {key: value for key, value in others.items() if key != "tool_calls" or message["role"] == "assistant"}


def _inner(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = content.get(key)
    return inner if isinstance(inner, Mapping) else {}
