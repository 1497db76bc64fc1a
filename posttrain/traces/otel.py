"""Writes an episode as one trace by OpenTelemetry's conventions for generative AI (v0.1.0), a line
of OTLP's JSON.

`invoke_agent` holds a `chat` for each turn and an `execute_tool` for each call. Scores are its
events, and what the conventions have no place for are its attributes `posttrain.NAME`. A store
knows when a run began and how long turns and tools took, so spans follow each other from there.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from posttrain.traces.reading import episode_columns, json_line, token_columns
from posttrain.traces.values import StoredEpisode
from posttrain.types import Message, Turn
from posttrain.worlds.tools import json_object

Schemas = Mapping[str, Mapping[str, Any]]  # OpenAI's, by the tool's name
_Work = tuple[str, str, Mapping[str, Any], float, str]  # operation, its object, attributes, seconds, error
_TYPES = {bool: "boolValue", float: "doubleValue", str: "stringValue"}


def otel_line(episode: StoredEpisode, schemas: Schemas) -> str:
    """The episode as OTLP's `{"resourceSpans": […]}`. A tool without a schema has its name only."""
    trace = _digest(f"{episode.run.uid} {episode.episode_id}", 32)
    at_s, spans = episode.run.started_at, []
    for number, (operation, name, attributes, seconds, error) in enumerate(_work(episode, schemas, trace)):
        start, end = (str(round(one_s * 1e9)) for one_s in (at_s, at_s + max(seconds, 0.0)))
        at_s += max(seconds, 0.0) if number else 0.0  # the first holds all others
        span = {"traceId": trace, "spanId": _digest(f"{trace} {number}", 16), "name": f"{operation} {name}"}
        parent = {"parentSpanId": _digest(f"{trace} 0", 16)} if number else {}
        events = [] if number else [{**one, "timeUnixNano": end} for one in _evaluations(episode)]
        times = {"startTimeUnixNano": start, "endTimeUnixNano": end, "kind": 3 if operation == "chat" else 1}
        named = _attributes({"gen_ai.operation.name": operation, **attributes, "error.type": error or None})
        status = {"code": 2, "message": error} if error else {}
        spans.append({**span, **parent, **times, "attributes": named, "events": events, "status": status})
    scope = {"scope": {"name": "posttrain"}, "spans": spans}
    resource = {"attributes": _attributes({"service.name": "posttrain"})}
    return json_line({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def otel_message(message: Message) -> dict[str, Any]:
    """A message of parts. Arguments are an object where its compact text is what the agent wrote,
    else that text."""
    if message.role == "tool":
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [part]}
    thoughts = [{"type": "reasoning", "content": message.reasoning_content}] if message.reasoning_content else []
    texts = [{"type": "text", "content": message.content}] if message.content else []
    called = [(call, exact_object(call.arguments)) for call in message.tool_calls]
    calls = [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments if found is None else found}
        for call, found in called
    ]
    return {"role": message.role, "parts": [*thoughts, *texts, *calls]}


def exact_object(arguments: str) -> dict[str, Any] | None:
    """The object of a call's arguments; None where an import would write another text for it (it
    takes nulls for arguments that were not given)."""
    found = json_object(arguments)
    is_exact = json.dumps(found, ensure_ascii=False, separators=(",", ":")) == arguments and "null" not in arguments
    return found if is_exact else None


def written_tokens(turns: Iterable[Turn]) -> Iterator[range]:
    """The places of the tokens that each turn wrote: a turn reads on behind the one before."""
    end = 0
    for turn in turns:
        start, end = end + turn.num_read, end + turn.num_read + turn.num_written
        yield range(start, end)


def _work(episode: StoredEpisode, schemas: Schemas, trace: str) -> Iterator[_Work]:
    """The agent's run, then each turn and its calls."""
    run, traced, played = episode.run, episode.traced, episode.traced.trajectory
    num_head = int(played.messages[:1] != () and played.messages[0].role == "system")
    head = [{"type": "text", "content": one.content} for one in played.messages[:num_head]]
    messages, model = played.messages[num_head:], f"{run.stage}@{run.key}"
    named = [schemas.get(name, {"function": {"name": name}})["function"] for name in traced.task.tools]
    tools = {"gen_ai.tool.definitions": [{"type": "function", **one} for one in named]}
    shared = {"gen_ai.provider.name": "posttrain", "gen_ai.conversation.id": trace}
    context = {**shared, "gen_ai.request.model": model, "gen_ai.request.seed": played.seed, **tools}
    context |= {"gen_ai.system_instructions": head or None}
    turns = played.turns or [Turn(0, 0, 0, index) for index in traced.written()]
    places = [len(messages) if turn.message_index is None else turn.message_index - num_head for turn in turns]
    after = [otel_message(one) for one in messages[max(places, default=-1) + 1 :]]
    own = {**episode_columns(episode), **token_columns(episode), "messages_after": after}
    about = {"gen_ai.agent.name": traced.task.agent_name, **{f"posttrain.{name}": own[name] for name in own}}
    seconds = sum(turn.latency_s + sum(one.latency_s for one in turn.tool_runs) for turn in turns)
    error = str(played.stop_reason) if played.is_aborted else ""
    yield "invoke_agent", traced.task.agent_name, {**context, **about}, seconds, error
    for turn, place, tokens in zip(turns, places, written_tokens(turns), strict=True):
        output = messages[place : place + 1]
        reason = "length" if not output else "tool_call" if output[0].tool_calls else "stop"
        usage = {"gen_ai.usage.input_tokens": tokens.start, "gen_ai.usage.output_tokens": len(tokens)}
        said = {
            "gen_ai.input.messages": [otel_message(one) for one in messages[:place]],
            "gen_ai.output.messages": [{**otel_message(one), "finish_reason": reason} for one in output],
            "gen_ai.response.finish_reasons": (reason,),
        }
        yield "chat", model, {**context, **said, **(usage if played.turns else {})}, turn.latency_s, ""
        yield from _calls(shared, turn, messages[place:])


def _calls(shared: Mapping[str, Any], turn: Turn, messages: Sequence[Message]) -> Iterator[_Work]:
    """The calls of the first of these messages that were run or answered."""
    runs = {one.call_id: one for one in turn.tool_runs}
    results = {one.tool_call_id: one.content for one in reversed(messages) if one.role == "tool"}
    for call in messages[0].tool_calls if messages else ():
        ran, result = runs.get(call.id), results.get(call.id)
        about = {"gen_ai.tool.name": call.name, "gen_ai.tool.type": "function", "gen_ai.tool.call.id": call.id}
        told = {"gen_ai.tool.call.arguments": call.arguments, "gen_ai.tool.call.result": result}
        if ran is not None or result is not None:
            error = "" if ran is None or ran.outcome == "ok" else ran.outcome
            yield "execute_tool", call.name, {**shared, **about, **told}, ran.latency_s if ran else 0.0, error


def _evaluations(episode: StoredEpisode) -> Iterator[Mapping[str, Any]]:
    """The world's grade, then its scores and reward, or those by params.yaml."""
    outcome, columns = episode.traced.trajectory.outcome, episode_columns(episode)
    graded: dict[str, float | None] = dict(columns["scores"]) | {"reward": columns["reward"]}
    if outcome is not None:
        graded = {**outcome.scores, **graded, "success": float(outcome.success)}
        graded["reward"] = outcome.reward if columns["reward"] is None else columns["reward"]
    for name, value in graded.items():
        found: dict[str, Any] = {"name": name, "score.value": value}
        if name == "success" and outcome is not None:
            found |= {"score.label": "pass" if value else "fail", "explanation": outcome.feedback or None}
        attributes = _attributes({f"gen_ai.evaluation.{key}": one for key, one in found.items()})
        yield from [{"name": "gen_ai.evaluation.result", "attributes": attributes}] if value is not None else []


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """OTLP's typed values, those that are None left out. Lists and objects are JSON text, which
    every SDK and backend takes; a tuple is an array of texts."""
    return [{"key": key, "value": _typed(value)} for key, value in values.items() if value is not None]


def _typed(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [_typed(one) for one in value]}}
    if type(value) is int:
        return {"intValue": str(value)}
    is_plain = type(value) in _TYPES
    text = value if is_plain else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return {_TYPES.get(type(value), "stringValue"): text}


def _digest(text: str, num_digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:num_digits]
