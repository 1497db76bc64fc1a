"""Reads logs in which an episode is a list of steps or events: ATIF (Harbor's Agent Trajectory
Interchange Format), SWE-agent's `.traj`, and OpenHands' events.

What a log says besides the conversation is reported, such as other agents' trajectories. A result
that answers no call is what the agent reads as a user's.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.data.importing.fields import SPELLINGS, Fields, from_json, listed
from posttrain.data.importing.rows import own_columns

_STEP = {"step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content", "metrics"}
_STEP |= {"tool_calls", "observation", "is_copied_context", "llm_call_count"}
_EXITS = {  # of SWE-agent; in brackets behind `submitted` where it submitted what there was
    **dict.fromkeys(("exit_cost", "exit_context"), "token_limit"),
    **dict.fromkeys(("exit_total_execution_time", "exit_command_timeout"), "time_limit"),
    **dict.fromkeys(("exit_format", "exit_forfeit"), "turn_limit"),
    **dict.fromkeys(("exit_error", "exit_api", "exit_environment_error"), "tool_failed"),
    "submitted": "stop_tool",
    "": None,
}
_SWE_MESSAGE = {"agent", "message_type", "thought", "action", "is_demo", "tags", "cache_control", "tool_call_ids"}
_SWE_INFO = {"exit_status", "model_stats", "swe_agent_hash", "swe_agent_version", "swe_rex_version", "swe_rex_hash"}


def read_atif(fields: Fields) -> Mapping[str, Any]:
    """Steps copied from an earlier trajectory, and those without a model's call, are not trained
    on."""
    steps, agent = listed(fields.raw("steps"), "steps"), fields.raw("agent")
    fields.raw("schema_version", "session_id", "trajectory_id")
    extra, unread = dict(fields.raw("extra") or {}), fields.unread
    own, totals = extra.pop("posttrain", None), fields.raw("final_metrics") or {}
    graded: dict[str, Any] = {}
    for key, value in [*extra.items(), *(totals.get("extra") or {}).items()]:
        if key in ("reward", *SPELLINGS["record"]["success"]) and graded.setdefault(key, value) != value:
            raise ValueError(f"it has {key} twice, and they differ")
        if key == "scores":
            graded |= value
        unread.update([f"extra: {key}"] if key not in graded and key != "scores" else [])
    tokens = _tokens(steps, unread)
    return {
        "messages": [message for step in steps for message in _messages(step, unread)],
        "tools": agent.get("tool_definitions"),
        "evaluations": {key: value for key, value in graded.items() if value is not None},
        **(own_columns(own, tokens) if own else {"played": tokens}),
    }


def _messages(step: Mapping[str, Any], unread: set[str]) -> Iterator[dict[str, Any]]:
    unread.update(f"steps: {key}" for key, value in step.items() if key not in _STEP and value)
    calls, results = step.get("tool_calls") or [], (step.get("observation") or {}).get("results") or []
    message = {"role": step["source"], "content": step["message"]}
    if step["source"] == "agent":
        is_put = step.get("is_copied_context") or step.get("llm_call_count") == 0
        message |= {
            "role": "assistant",
            "reasoning_content": step.get("reasoning_content"),
            "weight": 0 if is_put else None,
        }
        message["tool_calls"] = [_call(one) for one in calls]
    if step["message"] or not results or step["source"] != "system":
        yield message
    for result in results:
        extra = result.get("extra") or {}
        unread.update(f"observations: {key}" for key in result if key not in ("source_call_id", "content", "extra"))
        unread.update(f"observations: extra.{key}" for key in extra if key != "source_call_id")
        answers = {"tool_call_id": result.get("source_call_id") or extra.get("source_call_id")}
        role = {"role": "tool", **answers} if calls or "source_call_id" in extra else {"role": "user"}
        yield {**role, "content": result.get("content") or ""}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    extra = dict(call.get("extra") or {})
    arguments = extra.pop("posttrain.arguments", call["arguments"])
    return {"id": call["tool_call_id"], "name": call["function_name"], "arguments": arguments, "extra": extra}


def _tokens(steps: list[Any], unread: set[str]) -> dict[str, list[Any]]:
    """Token ids, mask and log-probabilities of the episode; none, and reported, where a prompt does
    not begin with all before it, or a step has no log-probabilities."""
    ids, mask, logprobs = list[int](), list[int](), list[float]()
    for metrics in (step["metrics"] for step in steps if step.get("metrics")):
        unread.update(["metrics: extra"] if metrics.get("extra") else [])
        read, own, told = (metrics.get(key) or [] for key in ("prompt_token_ids", "completion_token_ids", "logprobs"))
        if read[: len(ids)] != ids or len(own) != len(told):
            unread.add("metrics: token ids of another prompt, or without log-probabilities")
            return {}
        new = read[len(ids) :]
        ids, mask, logprobs = (
            ids + new + own,
            mask + [0] * len(new) + [1] * len(own),
            logprobs + [0.0] * len(new) + told,
        )
    return {"token_ids": ids, "mask": mask, "logprobs": logprobs} if ids else {}


def is_swe_agent(record: Mapping[str, Any]) -> bool:
    """Steps with what they did and saw."""
    return isinstance(record.get("trajectory"), list) and "info" in record


def read_swe_agent(fields: Fields) -> Mapping[str, Any]:
    """The `history`; without it the first prompt, responses and observations."""
    info, unread, steps = fields.raw("info"), fields.unread, fields.raw("trajectory")
    unread.update(f"info: {key}" for key, value in info.items() if key not in _SWE_INFO and value)
    status = str(info.get("exit_status") or "").removeprefix("submitted (").removesuffix(")")
    unread.update([] if status in _EXITS else [f"info: exit_status {status}"])
    problem = (from_json(fields.raw("replay_config"), "replay_config") or {}).get("problem_statement") or {}
    history = fields.raw("history") or [*steps[0]["query"], *(said for step in steps for said in _said(step))]
    own = [one for one in history if one.get("agent", "main") in ("main", "primary")]
    unread.update(["history: messages of another agent"] if len(own) < len(history) else [])
    task_id = problem.get("id") or fields.raw("instance_id")
    return {"messages": list(map(_swe_message, own)), "task_id": task_id, "stop_reason": _EXITS.get(status)}


def _said(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    seen = [{"role": "user", "content": step["observation"]}] if step["observation"] else []
    return [{"role": "assistant", "content": step["response"]}, *seen]


def _swe_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """`thought` and `action` repeat the content; demonstrations are not the agent's words."""
    read = {key: value for key, value in message.items() if key not in _SWE_MESSAGE}
    if message["role"] == "tool":
        [read["tool_call_id"]] = message["tool_call_ids"]
    if blocks := read.pop("thinking_blocks", None):
        read["reasoning_content"] = "\n".join(one["thinking"] for one in blocks)
    return read | ({"weight": 0} if message.get("is_demo") and message["role"] == "assistant" else {})


def is_openhands(record: Mapping[str, Any]) -> bool:
    """A history of events, or of pairs of them."""
    history = record.get("history")
    first = history[0] if isinstance(history, list) and history else None
    first = first[0] if isinstance(first, list) and first else first
    return isinstance(first, Mapping) and "source" in first and bool({"action", "observation"} & set(first))


def read_openhands(fields: Fields) -> Mapping[str, Any]:
    """The conversation that the events tell. An error that is not the agent's own ends it as the
    infrastructure's."""
    history, unread = fields.raw("history"), fields.unread
    fields.raw("metadata", "metrics", "instruction", "instance")
    events = [one for entry in history for one in (entry if isinstance(entry, list) else [entry])]
    tested, error = fields.raw("test_result") or {}, str(fields.raw("error") or "")
    report = fields.raw("report") or tested.get("report") or {}
    unread.update(f"test_result: {key}" for key, value in tested.items() if key != "report" and value)
    is_own = "AgentStuckInLoop" in error or "maximum iteration" in error
    return {
        "messages": [message for one in _responses(events) for message in _event_messages(one, unread)],
        "tools": next((one["args"]["tools"] for one in events if (one.get("args") or {}).get("tools")), None),
        "task_id": fields.raw("instance_id"),
        "evaluations": {"resolved": report["resolved"]} if "resolved" in report else {},
        "stop_reason": None if not error else "turn_limit" if is_own else "tool_failed",
    }


def _responses(events: list[Any]) -> Iterator[Any]:
    """The events without those whose call the model made in one message with an earlier one's."""
    seen = set()
    for event in events:
        response = ((event.get("tool_call_metadata") or {}).get("model_response") or {}).get("id")
        if "observation" in event or response is None or response not in seen:
            yield event
        seen.add(response)


def _event_messages(event: Mapping[str, Any], unread: set[str]) -> Iterator[dict[str, Any]]:
    args, called = event.get("args") or {}, event.get("tool_call_metadata") or {}
    is_agents, kind = event["source"] == "agent", event.get("action") or event.get("observation")
    if "observation" in event and called:
        yield {"role": "tool", "content": event["content"], "tool_call_id": called["tool_call_id"]}
    elif called:
        said = called["model_response"]["choices"][0]["message"]
        yield {"role": "assistant", **{key: said.get(key) for key in ("content", "tool_calls", "reasoning_content")}}
    elif kind in ("system", "message"):
        yield {
            "role": "system" if kind == "system" else "assistant" if is_agents else "user",
            "content": args["content"],
        }
    elif kind == "error":
        yield {"role": "user", "content": event["content"]}
    elif is_agents and "observation" not in event and ("command" in args or "code" in args or kind == "finish"):
        unread.add("events: calls without the model's response, read from their args")
        given = {key: value for key, value in args.items() if key != "thought"}
        call = {"id": str(event["id"]), "name": kind, "arguments": given}
        yield {"role": "assistant", "content": args.get("thought") or "", "tool_calls": [call]}
    elif is_agents and kind in ("run", "run_ipython"):
        yield {"role": "tool", "content": event["content"], "tool_call_id": str(event["cause"])}
    else:
        unread.add(f"events: {kind}")
