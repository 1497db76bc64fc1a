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
from posttrain.types import Message, ToolCall, Turn
from posttrain.worlds.tools import json_object

Schemas = Mapping[str, Mapping[str, Any]]  # OpenAI's, by the tool's name
_Work = tuple[str, str, Mapping[str, Any], float, str]  # operation, its object, attributes, seconds, error


def otel_line(episode: StoredEpisode, schemas: Schemas) -> str:
    """The episode as OTLP's `{"resourceSpans": […]}`. A tool without a schema has its name only."""
    digest = hashlib.sha256(f"{episode.run.uid} {episode.episode_id}".encode()).hexdigest()[:32]
    work = list(_work(episode, schemas, digest))
    ids = [hashlib.sha256(f"{digest} {number}".encode()).hexdigest()[:16] for number in range(len(work))]
    at_s = episode.run.started_at
    spans = []
    for number, (operation, name, attributes, seconds, error) in enumerate(work):
        end_s = at_s + max(seconds, 0.0)
        span: dict[str, Any] = {
            "traceId": digest,
            "spanId": ids[number],
            **({"parentSpanId": ids[0]} if number else {}),
        }
        span |= {"name": f"{operation} {name}", "kind": 3 if operation == "chat" else 1}  # client, internal
        span |= {"startTimeUnixNano": str(round(at_s * 1e9)), "endTimeUnixNano": str(round(end_s * 1e9))}
        named = {"gen_ai.operation.name": operation, **attributes, "error.type": error or None}
        span |= {"attributes": _attributes(named), "status": {"code": 2, "message": error} if error else {}}
        events = [] if number else list(_evaluations(episode))
        event = {"timeUnixNano": span["endTimeUnixNano"], "name": "gen_ai.evaluation.result"}
        spans.append({**span, "events": [{**event, "attributes": _attributes(one)} for one in events]})
        at_s = end_s if number else at_s  # the first holds all others
    scope = {"scope": {"name": "posttrain"}, "spans": spans}
    resource = {"attributes": _attributes({"service.name": "posttrain"})}
    return json_line({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def otel_message(message: Message) -> dict[str, Any]:
    """A message of parts."""
    if message.role == "tool":
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [part]}
    thoughts = [{"type": "reasoning", "content": message.reasoning_content}] if message.reasoning_content else []
    texts = [{"type": "text", "content": message.content}] if message.content else []
    calls = [{"type": "tool_call", "id": one.id, "name": one.name, **arguments_of(one)} for one in message.tool_calls]
    return {"role": message.role, "parts": [*thoughts, *texts, *calls]}


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """`arguments` as an object, empty where the text is none; where an import would write another
    text for it, `posttrain.arguments` keeps the agent's own."""
    found = json_object(call.arguments) or {}
    is_text = json.dumps(found, ensure_ascii=False, separators=(",", ":")) == call.arguments
    # an import takes nulls for arguments that were not given
    own = {} if is_text and "null" not in call.arguments else {"posttrain.arguments": call.arguments}
    return {"arguments": found, **own}


def written_tokens(turns: Iterable[Turn]) -> Iterator[range]:
    """The places of the tokens that each turn wrote: a turn reads on behind the one before."""
    end = 0
    for turn in turns:
        start, end = end + turn.num_read, end + turn.num_read + turn.num_written
        yield range(start, end)


def _work(episode: StoredEpisode, schemas: Schemas, digest: str) -> Iterator[_Work]:
    """The agent's run, then each turn and its calls."""
    run, traced, played = episode.run, episode.traced, episode.traced.trajectory
    num_head = int(played.messages[:1] != () and played.messages[0].role == "system")
    messages = played.messages[num_head:]
    tools = [
        {"type": "function", **schemas.get(name, {"function": {"name": name}})["function"]}
        for name in traced.task.tools
    ]
    shared = {"gen_ai.provider.name": "posttrain", "gen_ai.conversation.id": digest}
    model = f"{run.stage}@{run.key}"
    head = [{"type": "text", "content": one.content} for one in played.messages[:num_head]]
    context = {**shared, "gen_ai.request.model": model, "gen_ai.request.seed": played.seed}
    context |= {"gen_ai.system_instructions": head or None, "gen_ai.tool.definitions": tools}
    turns = played.turns or [Turn(0, 0, 0, index) for index in traced.written()]
    places = [len(messages) if turn.message_index is None else turn.message_index - num_head for turn in turns]
    own = {**episode_columns(episode), **token_columns(episode)}
    own["messages_after"] = [otel_message(one) for one in messages[max(places, default=-1) + 1 :]]
    seconds = sum(turn.latency_s + sum(one.latency_s for one in turn.tool_runs) for turn in turns)
    named = {"gen_ai.agent.name": traced.task.agent_name, **context}
    error = str(played.stop_reason) if played.is_aborted else ""
    about = {f"posttrain.{name}": value for name, value in own.items()}
    yield "invoke_agent", traced.task.agent_name, {**named, **about}, seconds, error
    for turn, place, tokens in zip(turns, places, written_tokens(turns), strict=True):
        output = messages[place : place + 1]
        reason = "length" if not output else "tool_call" if output[0].tool_calls else "stop"
        said = {
            "gen_ai.input.messages": [otel_message(one) for one in messages[:place]],
            "gen_ai.output.messages": [{**otel_message(one), "finish_reason": reason} for one in output],
            "gen_ai.response.finish_reasons": (reason,),
            "gen_ai.usage.input_tokens": tokens.start if played.turns else None,
            "gen_ai.usage.output_tokens": len(tokens) if played.turns else None,
        }
        yield "chat", model, {**context, **said}, turn.latency_s, ""
        yield from _calls(shared, turn, [*output, *messages[place + 1 :]])


def _calls(shared: Mapping[str, Any], turn: Turn, messages: Sequence[Message]) -> Iterator[_Work]:
    """The calls of the first of these messages that were run or answered."""
    runs = {one.call_id: one for one in turn.tool_runs}
    results = {one.tool_call_id: one.content for one in reversed(messages) if one.role == "tool"}
    for call in messages[0].tool_calls if messages else ():
        ran = runs.get(call.id)
        if ran is not None or call.id in results:
            named = {"gen_ai.tool.name": call.name, "gen_ai.tool.type": "function", "gen_ai.tool.call.id": call.id}
            told = {"gen_ai.tool.call.arguments": call.arguments, "gen_ai.tool.call.result": results.get(call.id)}
            error = "" if ran is None or ran.outcome == "ok" else ran.outcome
            yield "execute_tool", call.name, {**shared, **named, **told}, 0.0 if ran is None else ran.latency_s, error


def _evaluations(episode: StoredEpisode) -> Iterator[Mapping[str, Any]]:
    """The world's grade, then the scores and the reward by params.yaml."""
    outcome, columns = episode.traced.trajectory.outcome, episode_columns(episode)
    name, value, label = (f"gen_ai.evaluation.{key}" for key in ("name", "score.value", "score.label"))
    if outcome is not None:
        text = {"gen_ai.evaluation.explanation": outcome.feedback or None}
        yield {name: "success", value: float(outcome.success), label: "pass" if outcome.success else "fail", **text}
    graded = {} if outcome is None else {"reward": outcome.reward, **outcome.scores}
    graded |= columns["scores"] | ({} if columns["reward"] is None else {"reward": columns["reward"]})
    yield from ({name: key, value: one} for key, one in graded.items() if one is not None)


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in values.items() if value is not None]


def _any_value(value: Any) -> dict[str, Any]:
    """OTLP's typed value. Lists and objects are JSON text, which every SDK and backend takes; a
    tuple is an array of texts."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case tuple():
            return {"arrayValue": {"values": [_any_value(one) for one in value]}}
    return {"stringValue": json.dumps(value, ensure_ascii=False, separators=(",", ":"))}
