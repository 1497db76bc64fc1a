"""Reads result files of benchmarks: tau-bench, tau2, and the Berkeley Function-Calling Leaderboard
(BFCL)."""

from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.data.importing.fields import Fields
from posttrain.models.call_formats.pythonic import Pythonic
from posttrain.worlds.tools import json_object

TAU_STOP_TOOLS = ("transfer_to_human_agents",)  # any other call at the end met the limit of steps
_TAU2_METADATA = ("id", "turn_idx", "timestamp", "cost", "usage", "raw_data", "requestor", "error")
_TAU2_STOP_REASONS = {
    "user_stop": "done",
    "agent_stop": "done",
    "max_steps": "turn_limit",
    "too_many_errors": "turn_limit",
    "timeout": "time_limit",
    "agent_error": "turn_limit",  # a message that cannot be used: tau2 counts it as the agent's failure
    "user_error": "tool_failed",  # of the simulated user
    "infrastructure_error": "tool_failed",
}


def read_tau_bench(fields: Fields) -> Mapping[str, Any]:
    """`task_id`, `trial`, `reward` and `traj`, of which none may lack: raises KeyError."""
    record = {name: fields.raw(name) for name in ("traj", "task_id", "reward", "trial")}
    if missing := [name for name, value in record.items() if value is None]:
        raise KeyError(missing[0])
    task_id = f"tau_bench-{record['task_id']}"
    return {"messages": record["traj"], "task_id": task_id, "reward": record["reward"], "seed": record["trial"]}


def is_tau2(record: Mapping[str, Any]) -> bool:
    """Messages with how the simulation ended."""
    return "messages" in record and ("termination_reason" in record or "reward_info" in record)


def read_tau2(fields: Fields) -> Mapping[str, Any]:
    """A simulation, with the policy as system text where the file has it.

    The user has tools too; the agent sees neither those calls nor their results, so they are left
    out. A greeting at the start is the environment's and not trained on.
    """
    names = ("messages", "info", "task_id", "reward_info", "seed", "trial", "termination_reason")
    record = {name: fields.raw(name) for name in names}
    messages = [_tau2_message(message) for message in record["messages"] if _agent_sees(message)]
    if messages and messages[0]["role"] == "assistant":
        messages[0] = {**messages[0], "weight": 0}
    environment, ended = _object(_object(record, "info"), "environment_info"), record["termination_reason"]
    return {
        "messages": messages,
        **({"system": environment["policy"]} if environment.get("policy") else {}),
        "task_id": f"{environment.get('domain_name') or 'tau2'}-{record['task_id']}",
        "reward": _object(record, "reward_info").get("reward"),
        "seed": record["trial"] if record["seed"] is None else record["seed"],
        "stop_reason": _TAU2_STOP_REASONS.get(ended) if isinstance(ended, str) else None,
    }


def _agent_sees(message: Any) -> bool:
    if message["role"] == "tool":
        return bool(message.get("requestor") != "user")
    return message["role"] != "user" or bool(message.get("content")) or not message.get("tool_calls")


def _tau2_message(message: Mapping[str, Any]) -> dict[str, Any]:
    others = {key: value for key, value in message.items() if key not in _TAU2_METADATA}
    if message["role"] == "tool":
        return {**others, "tool_call_id": message.get("id") or message.get("tool_call_id")}
    return {key: value for key, value in others.items() if key != "tool_calls" or message["role"] == "assistant"}


def _object(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = content.get(key)
    return inner if isinstance(inner, Mapping) else {}


def read_bfcl(fields: Fields) -> Mapping[str, Any]:
    """A result with the log of its turns. Raises ValueError where it has none: the result alone
    says neither what was asked nor what was offered."""
    log, own_id, tools = fields.raw("inference_log"), fields.raw("id"), fields.raw("function")
    fields.raw("result")  # repeats the calls of the log
    turns = [turn for turn in log if isinstance(turn, Mapping)] if isinstance(log, list) else []
    messages = [message for turn in turns for message in _bfcl_turn(turn)]
    if not messages:
        raise ValueError(
            "it has no inference_log with turns, so nobody knows what was asked; only results of several turns have one"
        )
    return {"task_id": own_id, "messages": messages, **({} if tools is None else {"tools": tools})}


def _bfcl_turn(turn: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from turn.get("begin_of_turn_query") or ()
    for key in sorted((key for key in turn if key.startswith("step_")), key=lambda key: int(key.removeprefix("step_"))):
        entries = turn[key]
        decoded = next((one["model_response_decoded"] for one in entries if "model_response_decoded" in one), None)
        for entry in entries:
            if entry["role"] == "assistant":
                yield _bfcl_agent(entry, decoded)
            elif entry["role"] == "tool":
                yield {"role": "tool", "content": entry["content"]}


def _bfcl_agent(entry: Mapping[str, Any], decoded: Any) -> Mapping[str, Any]:
    message = {"role": "assistant", "content": "", "reasoning_content": entry.get("reasoning_content") or None}
    content = entry["content"]
    if isinstance(decoded, list) and decoded:
        return {**message, "tool_calls": [_bfcl_call(text) for text in decoded]}
    if isinstance(content, list):  # as an API of calls gave them: {name: JSON text of the arguments}
        named = [pair for call in content if isinstance(call, Mapping) for pair in call.items()]
        return {**message, "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in named]}
    return {**message, "content": content}


def _bfcl_call(text: Any) -> Mapping[str, Any]:
    """The call `cd(folder="document")`. Raises ValueError where it is none, or its arguments have
    no names."""
    if not isinstance(text, str):
        raise ValueError("a call in its log is not text")
    calls = Pythonic().read(f"[{text.strip()}]", ())[1]
    if len(calls) != 1 or json_object(calls[0].arguments) is None:
        raise ValueError(f"a call in its log is not name(argument=value, …): {text[:80]!r}")
    return calls[0]._asdict()
