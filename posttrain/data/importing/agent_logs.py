"""Reads logs in which an episode is a list of steps or events: ATIF (Harbor's Agent Trajectory
Interchange Format), SWE-agent's `.traj`, OpenHands' events, and steps as ReAct has them.

What a log says besides the conversation is reported, such as other agents' trajectories. A result
that answers no call is what the agent reads as a user's.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.data.importing.fields import SPELLINGS, Fields, from_json, listed
from posttrain.data.importing.rows import own_columns

Messages = Iterator[dict[str, Any]]
_AGENT = ("name", "version", "model_name", "tool_definitions")
_STEP = (
    *("step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content"),
    *("tool_calls", "observation", "metrics", "is_copied_context", "llm_call_count"),
)
_SWE_INFO = ("exit_status", "model_stats", "swe_agent_hash", "swe_agent_version", "swe_rex_version", "swe_rex_hash")
_SWE_MESSAGE = ("agent", "message_type", "thought", "action", "is_demo", "tags", "cache_control", "tool_call_ids")
_SWE_EXITS = {  # in brackets behind `submitted` where it submitted what there was
    **dict.fromkeys(("exit_cost", "exit_context"), "token_limit"),
    **dict.fromkeys(("exit_total_execution_time", "exit_command_timeout"), "time_limit"),
    **dict.fromkeys(("exit_format", "exit_forfeit"), "turn_limit"),
    **dict.fromkeys(("exit_error", "exit_api", "exit_environment_error"), "tool_failed"),
    **dict.fromkeys(("submitted",), "stop_tool"),
}
_EVENT = (
    *("id", "timestamp", "source", "message", "action", "args", "observation", "content", "extras", "cause"),
    *("tool_call_metadata", "llm_metrics", "timeout", "success"),
)


_ASKED = ("task", "question", "instruction", "query", "input")
_REACT = ("thought", "action", "action_input", "observation", "step", "step_id")
_FINISH = ("finish", "final answer", "final_answer", "answer")


def read_atif(fields: Fields) -> Mapping[str, Any]:
    """Steps copied from an earlier trajectory, and those without a model's call, are not trained
    on."""
    steps, agent, unread = listed(fields.raw("steps"), "steps"), fields.raw("agent"), fields.unread
    fields.raw("schema_version", "session_id", "trajectory_id")
    extra = {**((fields.raw("final_metrics") or {}).get("extra") or {}), **(fields.raw("extra") or {})}
    own = extra.pop("posttrain", None) or {}
    tokens = _tokens(steps, own.get("token_ids_after") or [], unread)
    grades = {name: extra.pop(name, None) for name in ("reward", *SPELLINGS["record"]["success"])}
    grades |= extra.pop("scores", None) or {}
    _report(unread, "extra", extra)
    _report(unread, "agent", agent, _AGENT)
    return {
        "messages": [message for step in steps for message in _atif_messages(step, unread)],
        "tools": agent.get("tool_definitions"),
        "evaluations": {} if own else grades,
        **(own_columns({**own, **tokens}) if own else {"played": tokens}),
    }


def is_steps(record: Mapping[str, Any]) -> bool:
    """A list of steps of which the first has an `action`."""
    steps = record.get("steps")
    return isinstance(steps, list) and bool(steps) and isinstance(steps[0], Mapping) and "action" in steps[0]


def read_steps(fields: Fields) -> Mapping[str, Any]:
    """ReAct's steps: `thought`, `action` (a tool's name), `action_input` and `observation`. An
    action `finish` or `Final Answer`, or one without a tool, is the answer; so is the record's own
    behind the last step. `final_reward` is the reward."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": fields.raw(*_ASKED)}]
    for number, step in enumerate(listed(fields.raw("steps"), "steps")):
        _report(fields.unread, "steps", step, _REACT)
        name, given, said = step.get("action"), step.get("action_input"), {"reasoning_content": step.get("thought")}
        if not name or str(name).lower() in _FINISH:
            text = given if isinstance(given, str) or given is None else json.dumps(given, ensure_ascii=False)
            messages.append({"role": "assistant", "content": text or "", **said})
            continue
        arguments = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
        call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call], **said})
        if (result := step.get("observation")) is not None:
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
            messages.append({"role": "tool", "content": text, "tool_call_id": call["id"]})
    if (answer := fields.raw("final_answer", "answer", "output")) is not None:
        messages.append({"role": "assistant", "content": answer})
    reward = fields.raw("final_reward")
    return {"messages": messages, **({} if reward is None else {"reward": reward})}


def _atif_messages(step: Mapping[str, Any], unread: set[str]) -> Messages:
    _report(unread, "steps", step, _STEP)
    calls, results = step.get("tool_calls") or [], (step.get("observation") or {}).get("results") or []
    message = {"role": step["source"], "content": step["message"]}
    if step["source"] == "agent":
        is_put = step.get("is_copied_context") or step.get("llm_call_count") == 0
        message |= {"role": "assistant", "tool_calls": [_atif_call(one) for one in calls]}
        message |= {"reasoning_content": step.get("reasoning_content"), "weight": 0 if is_put else None}
    if step["message"] or not results or step["source"] != "system":
        yield message
    for result in results:
        _report(unread, "observations", result, ("source_call_id", "content", "extra"))
        own = result.get("extra") or {}
        _report(unread, "observations: extra", own, ("source_call_id",))
        call_id = result.get("source_call_id") or own.get("source_call_id")
        told = {"role": "tool", "tool_call_id": call_id} if calls or own else {"role": "user"}
        yield {**told, "content": result.get("content") or ""}


def _atif_call(call: Mapping[str, Any]) -> dict[str, Any]:
    extra = dict(call.get("extra") or {})
    arguments = extra.pop("posttrain.arguments", call["arguments"])
    return {"id": call["tool_call_id"], "name": call["function_name"], "arguments": arguments, "extra": extra}


def _tokens(steps: list[Any], after: list[int], unread: set[str]) -> dict[str, list[Any]]:
    """Token ids, mask and log-probabilities of the episode; none, and reported, where a prompt does
    not begin with all before it, or a step has no log-probabilities."""
    ids, mask, logprobs = list[int](), list[int](), list[float]()
    for metrics in (step["metrics"] for step in steps if step.get("metrics")):
        _report(unread, "metrics", {"extra": metrics.get("extra")})
        read, own, told = (metrics.get(key) or [] for key in ("prompt_token_ids", "completion_token_ids", "logprobs"))
        if read[: len(ids)] != ids or len(own) != len(told):
            unread.add("metrics: token ids of another prompt, or without log-probabilities")
            return {}
        new = [0] * (len(read) - len(ids))
        ids, mask, logprobs = [*read, *own], [*mask, *new, *[1] * len(own)], [*logprobs, *map(float, new), *told]
    ids, mask, logprobs = ids + after, mask + [0] * len(after), logprobs + [0.0] * len(after)
    return {"token_ids": ids, "mask": mask, "logprobs": logprobs} if 1 in mask else {}


def is_swe_agent(record: Mapping[str, Any]) -> bool:
    """Steps with what they did and saw."""
    return isinstance(record.get("trajectory"), list) and "info" in record


def read_swe_agent(fields: Fields) -> Mapping[str, Any]:
    """The `history`; without it the first prompt, responses and observations."""
    info, unread, steps = fields.raw("info"), fields.unread, fields.raw("trajectory")
    _report(unread, "info", info, _SWE_INFO)
    status = str(info.get("exit_status") or "").removeprefix("submitted (").removesuffix(")")
    unread.update([f"info: exit_status {status}"] if status and status not in _SWE_EXITS else [])
    problem = (from_json(fields.raw("replay_config"), "replay_config") or {}).get("problem_statement") or {}
    names = (("response", "assistant"), ("observation", "user"))
    said = [{"role": role, "content": step[key]} for step in steps for key, role in names if step.get(key)]
    history = listed(fields.raw("history") or [*(steps[0].get("query") or [] if steps else []), *said], "history")
    own = [one for one in history if one.get("agent", "main") in ("main", "primary")]
    unread.update(["history: messages of another agent"] if len(own) < len(history) else [])
    task_id = problem.get("id") or fields.raw("instance_id")
    return {"messages": list(map(_swe_message, own)), "task_id": task_id, "stop_reason": _SWE_EXITS.get(status)}


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
    """An error that is not the agent's own ends the episode as the infrastructure's."""
    fields.raw("metadata", "metrics", "instruction", "instance")
    events = [one for entry in fields.raw("history") for one in (entry if isinstance(entry, list) else [entry])]
    tested, error = fields.raw("test_result") or {}, str(fields.raw("error") or "")
    report, seen = fields.raw("report") or tested.get("report") or {}, dict[str, Any]()
    _report(fields.unread, "test_result", tested, ("report",))
    is_own = "AgentStuckInLoop" in error or "maximum iteration" in error
    return {
        "messages": [message for one in events for message in _event_messages(one, seen, fields.unread)],
        "tools": next((one["args"]["tools"] for one in events if (one.get("args") or {}).get("tools")), None),
        "task_id": fields.raw("instance_id"),
        "evaluations": {"resolved": report.get("resolved")},
        "stop_reason": None if not error else "turn_limit" if is_own else "tool_failed",
    }


def _event_messages(event: Mapping[str, Any], seen: dict[str, Any], unread: set[str]) -> Messages:
    """The message of an event; `seen` are the responses read, by their ids: each call of one is an
    event."""
    _report(unread, "events", event, _EVENT)
    args, called, is_seen = event.get("args") or {}, event.get("tool_call_metadata") or {}, "observation" in event
    is_agents, kind = event["source"] == "agent", event.get("action") or event.get("observation")
    if is_seen and called:
        yield {"role": "tool", "content": event["content"], "tool_call_id": called["tool_call_id"]}
    elif called:
        response_id, said = called["model_response"]["id"], called["model_response"]["choices"][0]["message"]
        if seen.get(response_id, said) != said:
            raise ValueError(f"two of its events tell the response {response_id} in different words")
        yield from [] if response_id in seen else [{**said, "role": "assistant"}]
        seen[response_id] = said
    elif kind in ("system", "message", "error"):
        role = "system" if kind == "system" else "assistant" if is_agents and not is_seen else "user"
        yield {
            "role": role,
            "content": event["content"] if is_seen else args["content"],
            "images": args.get("image_urls"),
        }
    elif is_agents and (kind in ("run", "run_ipython") or kind == "finish"):
        unread.add("events: calls without the model's response, read from their args")
        given = {key: value for key, value in args.items() if key != "thought"}
        call = {"id": str(event.get("id")), "name": kind, "arguments": given}
        made = {"role": "assistant", "content": args.get("thought") or "", "tool_calls": [call]}
        yield {"role": "tool", "content": event["content"], "tool_call_id": str(event["cause"])} if is_seen else made
    else:
        unread.add(f"events: {kind}")


def _report(unread: set[str], place: str, content: Mapping[str, Any], read: tuple[str, ...] = ()) -> None:
    unread.update(f"{place}: {key}" for key, value in content.items() if key not in read and value)
