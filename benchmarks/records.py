"""Tests that the import of trajectories never changes a meaning in silence.

    python -m benchmarks.records --records 5000 --seed 1

Records of every format are generated with a known meaning (system text, task, each call with its
arguments and result, what the agent says, what is learnt, whether people wanted it), their keys are
changed, and the import has to give that meaning, to refuse the record, or to name a key that it did
not read. The table counts outcomes by mutation; any `lost` or `crashed` ends it with 1.
"""

import argparse
import contextlib
import copy
import io
import itertools
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.data.importing.importer import import_trajectories
from posttrain.data.schemas import TrajectoryRow, untrained_messages
from posttrain.runtime.exits import DataError

Record = dict[str, Any]
_PROPERTIES: Mapping[str, Mapping[str, str]] = {
    "get_weather": {"town": "string"},
    "get_price": {"ticker": "string", "days": "integer"},
    "list_harbours": {},
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Tells it.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in own.items()},
                "required": list(own),
            },
        },
    }
    for name, own in _PROPERTIES.items()
]
_FUNCTIONS = [tool["function"] for tool in TOOLS]
_TOWNS, _TICKERS = ("Oslo", "Lima", "Rome", "Bonn"), ("ACME", "INIT", "ZORG")


@dataclass(frozen=True)
class Step:
    """One message of the agent: what it says, or the calls that it makes, each with its result."""

    said: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    results: tuple[str, ...] = ()
    is_learnt: bool = True


@dataclass(frozen=True)
class Meaning:
    """Meaning of a record, whatever its keys."""

    system: str
    task: str
    steps: tuple[Step, ...]
    success: bool | None

    @property
    def answer(self) -> str:
        return self.steps[-1].said


def draw_meaning(draw: random.Random, number: int) -> Meaning:
    """A task, one or two messages with one to three calls, an answer."""
    steps = []
    for turn in range(draw.randint(1, 2)):
        calls = tuple(_draw_call(draw) for _ in range(draw.randint(1, 3)))
        steps.append(Step("", calls, tuple(f"result {number}.{turn}.{at} warm" for at in range(len(calls)))))
    steps.append(Step(f"Answer {number}: all is well."))
    system = f"Rules {number}: be brief." if draw.random() < 0.5 else ""
    return Meaning(system, f"Question {number}: how is it there?", tuple(steps), draw.choice((None, True, False)))


def meaning_of(row: TrajectoryRow) -> Meaning:
    """Meaning of an imported row."""
    messages, hidden = row.trajectory.messages, untrained_messages(row.trajectory)
    system = messages[0].content if messages[0].role == "system" else ""
    results = {one.tool_call_id: one.content for one in messages if one.role == "tool"}
    steps = tuple(
        Step(
            one.content,
            tuple((call.name, json.loads(call.arguments)) for call in one.tool_calls),
            tuple(results.get(call.id, "(none)") for call in one.tool_calls if call.id in results),
            place not in hidden,
        )
        for place, one in enumerate(messages)
        if one.role == "assistant"
    )
    order = [one.tool_call_id for one in messages if one.role == "tool"]
    if order != [call.id for one in messages for call in one.tool_calls if call.id in results]:
        steps = (Step("results stand in another order than their calls"),)
    task = "\n".join(one.content for one in messages if one.role == "user")
    outcome = row.trajectory.outcome
    return Meaning(system, task, steps, None if outcome is None else outcome.success)


# --- the formats -------------------------------------------------------------------------------


def _openai(meant: Meaning) -> Record:
    messages: list[Record] = [{"role": "user", "content": meant.task}]
    for turn, step in enumerate(meant.steps):
        calls = [
            {"id": f"c{turn}_{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for at, (name, given) in enumerate(step.calls)
        ]
        messages.append({"role": "assistant", "content": step.said or None, **({"tool_calls": calls} if calls else {})})
        messages += [
            {"role": "tool", "tool_call_id": f"c{turn}_{at}", "name": step.calls[at][0], "content": result}
            for at, result in enumerate(step.results)
        ]
    system = [{"role": "system", "content": meant.system}] if meant.system else []
    return _judged({"messages": [*system, *messages]}, meant)


def _flat_calls(meant: Meaning) -> Record:
    """LangChain's and Cohere's calls, without `function`."""
    record = _openai(meant)
    for message in record["messages"]:
        for call in message.get("tool_calls", ()):
            function = call.pop("function")
            call |= {"name": function["name"], "args": json.loads(function["arguments"]), "type": "tool_call"}
    return record


def _anthropic(meant: Meaning) -> Record:
    messages: list[Record] = [{"role": "user", "content": meant.task}]
    for turn, step in enumerate(meant.steps):
        calls = [
            {"type": "tool_use", "id": f"t{turn}_{at}", "name": name, "input": dict(given)}
            for at, (name, given) in enumerate(step.calls)
        ]
        results = [
            {"type": "tool_result", "tool_use_id": f"t{turn}_{at}", "content": result}
            for at, result in enumerate(step.results)
        ]
        said = [{"type": "text", "text": step.said}] if step.said else []
        messages.append({"role": "assistant", "content": [*said, *calls]})
        messages += [{"role": "user", "content": results}] if results else []
    tools = [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
        for one in copy.deepcopy(_FUNCTIONS)
    ]
    return _judged({**_system(meant), "messages": messages}, meant, tools)


def _sharegpt(meant: Meaning) -> Record:
    turns: list[Record] = [{"from": "human", "value": meant.task}]
    for step in meant.steps:
        calls = [{"name": name, "arguments": dict(given)} for name, given in step.calls]
        turns.append(
            {"from": "function_call", "value": json.dumps(calls)} if calls else {"from": "gpt", "value": step.said}
        )
        turns += [{"from": "observation", "value": result} for result in step.results]
    return _judged({**_system(meant), "conversations": turns}, meant, json.dumps(_FUNCTIONS))


def _system(meant: Meaning) -> Record:
    return {"system": meant.system} if meant.system else {}


def _spoken(write: Callable[[Step], str], system: str = "") -> Callable[[Meaning], Record]:
    """A conversation whose calls stand in the agent's text; `system` has the tools as text."""

    def record(meant: Meaning) -> Record:
        about = f"{meant.system}{system}"
        turns = [{"from": "system", "value": about}] if about else []
        turns.append({"from": "human", "value": meant.task})
        for step in meant.steps:
            turns.append({"from": "gpt", "value": write(step) if step.calls else step.said})
            turns += [{"from": "tool", "value": result} for result in step.results]
        return _judged({"conversations": turns}, meant, None if system else TOOLS)

    return record


def _pythonic(step: Step) -> str:
    written = (f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in step.calls)
    return f"[{', '.join(written)}]"


def _tagged(tag: str) -> Callable[[Step], str]:
    return lambda step: "\n".join(
        f"<{tag}>{json.dumps({'name': name, 'arguments': given})}</{tag}>" for name, given in step.calls
    )


def _llama(step: Step) -> str:
    return "; ".join(json.dumps({"name": name, "parameters": given}) for name, given in step.calls)


def _completion(meant: Meaning) -> Record:
    chat = _openai(meant)
    messages = chat.pop("messages")
    first = next(at for at, one in enumerate(messages) if one["role"] == "assistant")
    return {**chat, "prompt": messages[:first], "completion": messages[first:]}


def _preference(meant: Meaning) -> Record:
    record = _completion(meant)
    record["chosen"] = record.pop("completion")
    return {**record, "rejected": [{"role": "assistant", "content": "No."}]}


def _openai_preference(meant: Meaning) -> Record:
    record = _preference(meant)
    names = {"chosen": "preferred_output", "rejected": "non_preferred_output"}
    asked = {"messages": record.pop("prompt"), "tools": record.pop("tools")}
    return {"input": asked, **{names.get(key, key): value for key, value in record.items()}}


def _telemetry(meant: Meaning) -> Record:
    """OpenTelemetry's messages of parts."""
    messages: list[Record] = []
    for turn, step in enumerate(meant.steps):
        said: list[Record] = [{"type": "text", "content": step.said}] if step.said else []
        calls = [
            {"type": "tool_call", "id": f"o{turn}_{at}", "name": name, "arguments": dict(given)}
            for at, (name, given) in enumerate(step.calls)
        ]
        messages.append({"role": "assistant", "parts": [*said, *calls]})
        for at, result in enumerate(step.results):
            response = {"type": "tool_call_response", "id": f"o{turn}_{at}", "response": result}
            messages.append({"role": "tool", "parts": [response]})
    return _of_parts("content", messages, meant)


def _of_parts(key: str, messages: list[Record], meant: Meaning) -> Record:
    told = [(role, text) for role, text in (("system", meant.system), ("user", meant.task)) if text]
    first = [{"role": role, "parts": [{"type": "text", key: text}]} for role, text in told]
    return _judged({"messages": [*first, *messages]}, meant)


def _tau_bench(meant: Meaning) -> Record:
    chat = _openai(meant)
    return {"task_id": 1, "trial": 0, "reward": float(bool(meant.success)), "traj": chat["messages"], "info": {}}


def _spans(meant: Meaning) -> Record:
    """OpenTelemetry's spans: a chat for each message of the agent, and an evaluation."""
    messages = _telemetry(meant)["messages"]
    own = [at for at, one in enumerate(messages) if one["role"] == "assistant"]
    tools = [{"type": "function", **one} for one in copy.deepcopy(_FUNCTIONS)]
    spans: list[Record] = []
    for at in own:
        said = {"gen_ai.input.messages": json.dumps(messages[:at]), "gen_ai.output.messages": [messages[at]]}
        about = {"gen_ai.operation.name": "chat", "gen_ai.tool.definitions": tools, **copy.deepcopy(said)}
        spans.append({"traceId": "1", "startTimeUnixNano": str(at), "attributes": about, "events": []})
    values = {"gen_ai.evaluation.name": "success", "gen_ai.evaluation.score.value": float(bool(meant.success))}
    if meant.success is not None:
        spans[0]["events"] = [{"name": "gen_ai.evaluation.result", "attributes": values}]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def _atif(meant: Meaning) -> Record:
    told = [("system", meant.system), ("user", meant.task)]
    steps: list[Record] = [{"source": source, "message": text} for source, text in told if text]
    for turn, step in enumerate(meant.steps):
        calls = [
            {"tool_call_id": f"a{turn}_{at}", "function_name": name, "arguments": dict(given)}
            for at, (name, given) in enumerate(step.calls)
        ]
        results = [{"source_call_id": f"a{turn}_{at}", "content": result} for at, result in enumerate(step.results)]
        called = {"tool_calls": calls, "observation": {"results": results}} if calls else {}
        steps.append({"source": "agent", "message": step.said, **called})
    numbered = [{"step_id": number, **one} for number, one in enumerate(steps, 1)]
    agent = {"name": "a", "version": "1", "tool_definitions": copy.deepcopy(TOOLS)}
    extra = {} if meant.success is None else {"extra": {"success": meant.success}}
    return {"schema_version": "ATIF-v1.8", "agent": agent, "steps": numbered, **extra}


def _swe_agent(meant: Meaning) -> Record:
    history = _openai(meant)["messages"]
    for message in (one for one in history if one["role"] == "tool"):
        message["tool_call_ids"] = [message.pop("tool_call_id")]
        del message["name"]
    return _judged({"trajectory": [], "history": history, "info": {"exit_status": None}}, meant, None)


def _openhands(meant: Meaning) -> Record:
    system = [{"action": "system", "source": "agent", "args": {"content": meant.system}}] if meant.system else []
    events: list[Record] = [*system, {"action": "message", "source": "user", "args": {"content": meant.task}}]
    for turn, message in enumerate(one for one in _openai(meant)["messages"] if one["role"] in ("assistant", "tool")):
        if message["role"] == "tool":
            called = {"tool_call_id": message["tool_call_id"]}
            events.append({"observation": "run", "source": "agent", "content": message["content"], "cause": turn})
            events[-1]["tool_call_metadata"] = called
        elif message.get("tool_calls"):
            response = {"id": str(turn), "choices": [{"message": message}]}
            for call in message["tool_calls"]:
                called = {"tool_call_id": call["id"], "model_response": copy.deepcopy(response)}
                events.append({"action": "run", "source": "agent", "args": {}, "tool_call_metadata": called})
        else:
            events.append({"action": "message", "source": "agent", "args": {"content": message["content"]}})
    report = {} if meant.success is None else {"report": {"resolved": meant.success}}
    return {"instance_id": "i", "history": events, "test_result": report}


def _judged(record: Record, meant: Meaning, tools: Any = TOOLS) -> Record:
    """The record with its tools, and what people said of it."""
    success = {} if meant.success is None else {"success": meant.success}
    return {**record, **({} if tools is None else {"tools": copy.deepcopy(tools)}), **success}


_LISTED = json.dumps(_FUNCTIONS)
FORMATS: Mapping[str, Callable[[Meaning], Record]] = {
    "openai": _openai,
    "flat calls": _flat_calls,
    "anthropic": _anthropic,
    "sharegpt": _sharegpt,
    "hermes": _spoken(_tagged("tool_call"), f"\n<tools>{_LISTED}</tools>"),
    "glaive": _spoken(_tagged("functioncall")),
    "toolace": _spoken(_pythonic, f"\nFunctions in JSON that you can call:\n{_LISTED}"),
    "pythonic": _spoken(_pythonic),
    "llama": _spoken(_llama),
    "completion": _completion,
    "preference": _preference,
    "openai preference": _openai_preference,
    "telemetry": _telemetry,
    "tau_bench": _tau_bench,
    "spans": _spans,
    "atif": _atif,
    "swe_agent": _swe_agent,
    "openhands": _openhands,
}


def expected(name: str, meant: Meaning) -> Meaning:
    """The part of the meaning that a format can hold."""
    if name == "tau_bench":
        return replace(meant, success=bool(meant.success))
    if name in ("hermes", "toolace"):  # what is left of the system's text once the tools are taken out
        about = "" if name == "hermes" else "\nFunctions in JSON that you can call:"
        return replace(meant, system=f"{meant.system}{about}".strip())
    return meant


# --- the mutations -----------------------------------------------------------------------------

# A mutation changes a record, and may change its meaning. None where the record has no such place.
Mutation = Callable[[random.Random, Record, Meaning], Meaning | None]
Places = tuple[Callable[[Record], list[Record]], Callable[[Record], str | None]]  # objects, and the key in each


def _dicts(value: Any) -> Iterator[Record]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dicts(inner)


def _calls(record: Record) -> list[Record]:
    """The objects that hold a call's arguments, under whichever key; tools are left out."""
    within = [value for key, value in record.items() if key != "tools"]
    return [one for one in _dicts(within) if _key_of_arguments(one) and {"name", "type", "toolCallId"} & set(one)]


def _key_of_arguments(call: Record) -> str | None:
    return next((key for key in ("arguments", "args", "input") if isinstance(call.get(key), (str, dict))), None)


def _chats(record: Record) -> list[Record]:
    learnt = [value for key, value in record.items() if key not in ("rejected", "non_preferred_output")]
    return [one for one in _dicts(learnt) if "role" in one or "from" in one]


def _key_of_content(message: Record) -> str | None:
    return next((key for key in ("content", "value", "parts") if message.get(key)), None)


def _renamed(
    places_of: Places, names: tuple[str, ...], draw: random.Random, record: Record, meant: Meaning
) -> Meaning | None:
    choose, find = places_of
    if not (places := [one for one in choose(record) if find(one)]):
        return None
    name = draw.choice(names)
    for place in places if draw.random() < 0.5 else [draw.choice(places)]:
        if name not in place and (key := find(place)):
            place[name] = place.pop(key)
    return meant


def _doubled(
    places_of: Places, names: tuple[str, ...], is_equal: bool, draw: random.Random, record: Record, meant: Meaning
) -> Meaning | None:
    choose, find = places_of
    places = [one for one in choose(record) if find(one)]
    if not places or (name := draw.choice(names)) in (place := draw.choice(places)):
        return None
    value = copy.deepcopy(place[find(place) or ""])
    place[name] = value if is_equal else {"town": "Paris"} if isinstance(value, dict) else "Something else."
    return meant


def _at_record(
    key: str, others: tuple[str, ...], draw: random.Random, record: Record, meant: Meaning
) -> Meaning | None:
    if key not in record:
        return None
    record[draw.choice(others)] = record.pop(key)
    return meant


def _beside(key: str, values: tuple[Any, ...], draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    """A key that would change what the record means, or mean nothing, beside all others."""
    if key in record:
        return None
    record[key] = draw.choice(values)
    return replace(meant, task=f"changed by {key}")  # no row says so


def _answer_moved(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    key = next((key for key in ("messages", "conversations") if isinstance(record.get(key), list)), None)
    if key is None or _text_of(record[key][-1]) != meant.answer:
        return None
    last = record[key].pop()
    name = draw.choice(("chosen", "chosen", "response", "completion", "answer", "output", "preferred_output"))
    record[name] = draw.choice((last, [last], meant.answer))
    if name in ("chosen", "preferred_output"):
        record["rejected"] = draw.choice(("No.", [{**last, _key_of_content(last) or "content": "No."}]))
        steps = (*(replace(step, is_learnt=False) for step in meant.steps[:-1]), meant.steps[-1])
        return replace(meant, steps=steps)
    return meant


def _text_of(message: Record) -> str:
    content = message.get(_key_of_content(message) or "")
    if isinstance(content, list):
        return "".join(str(part.get("text") or part.get("content") or "") for part in content if isinstance(part, dict))
    return str(content)


def _unlearnt(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    own = [one for one in _chats(record) if _speaker(one) in ("assistant", "gpt", "function_call")]
    if len(own) != len(meant.steps) or len(own) < 2 or "instance_id" in record:  # OpenHands repeats a message by call
        return None
    place = draw.randrange(len(own))
    names = {"weight": 0, "loss": False, "train": False, "training": False, "loss_weight": 0.0}
    name = draw.choice(list(names))
    own[place][name] = names[name]
    steps = [replace(step, is_learnt=False) if at == place else step for at, step in enumerate(meant.steps)]
    return replace(meant, steps=tuple(steps))


def _speaker(message: Record) -> Any:
    return message.get("role", message.get("from"))


def _success_as(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    if "success" not in record:
        return None
    success = record.pop("success")
    key = draw.choice(("label", "kto_tag", "is_correct", "passed", "score", "verdict", "label"))
    record[key] = draw.choice((success, success, int(success), str(success)))
    return meant


def _success_typed(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    if "success" not in record:
        return None
    record["success"] = draw.choice(("yes", 1, [True], "false"))
    return meant


def _typed_arguments(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    for call in (calls := _calls(record)):
        key = _key_of_arguments(call) or ""
        given = json.loads(call[key]) if isinstance(call[key], str) else call[key]
        call[key] = draw.choice((given, json.dumps(given), json.dumps(json.dumps(given))))
    return meant if calls else None


def _typed_content(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    places = [one for one in _chats(record) if isinstance(one.get(_key_of_content(one) or ""), str)]
    places = [one for one in places if one.get("from") != "function_call"]
    for place in places:
        key = _key_of_content(place) or ""
        place[key] = [{"type": "text", draw.choice(("text", "text", "value", "content", "words")): place[key]}]
    return meant if places else None


def _as_text(keys: tuple[str, ...], _: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    own = [key for key in keys if isinstance(record.get(key), list)]
    record |= {key: json.dumps(record[key]) for key in own}
    return meant if own else None


def _lists(record: Record) -> list[list[Any]]:
    return [value for one in _dicts(record) for value in one.values() if isinstance(value, list)]


def _padded(_: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    """Padded as `datasets` exports: each object of a list has the keys of all, and so have
    arguments."""
    for listed in _lists(record):
        objects = [one for one in listed if isinstance(one, dict)]
        keys = {key for one in objects for key in one}
        for one in objects:
            one |= {key: None for key in keys if key not in one}
    for call in _calls(record):
        if isinstance(given := call[_key_of_arguments(call) or ""], dict):
            given |= {key: None for key in ("town", "ticker", "days") if key not in given}
    record |= {"chosen": record.get("chosen"), "label": record.get("label"), "history": None}
    return meant


def _null_arguments(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    empty = [call for call in _calls(record) if call[_key_of_arguments(call) or ""] in ("{}", {})]
    for call in empty:
        key = _key_of_arguments(call) or ""
        call[key] = draw.choice((None, ""))
        if draw.random() < 0.3:
            del call[key]
    return meant if empty else None


def _turns_of_results(record: Record) -> list[tuple[list[Any], list[int]]]:
    """Lists with the places of the results of one turn, where there are several."""

    def is_result(one: Any) -> bool:
        return isinstance(one, dict) and (one.get("role") == "tool" or one.get("type") == "tool_result")

    found = []
    for listed in _lists(record):
        for is_turn, places in itertools.groupby(range(len(listed)), lambda at: is_result(listed[at])):  # noqa: B023
            if is_turn and len(run := list(places)) > 1:
                found.append((listed, run))
    return found


def _shuffled(without_ids: bool, draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    turns = _turns_of_results(record)
    for listed, run in turns:
        names = [listed[at].get("name") for at in run]
        if without_ids and (None in names or len(set(names)) < len(names) or "parts" in listed[run[0]]):
            return None  # nothing would tell the results apart
        moved = [listed[at] for at in run]
        draw.shuffle(moved)
        for at, one in zip(run, moved, strict=True):
            listed[at] = one
            if without_ids:
                one.pop("tool_call_id", None)
    return meant if turns else None


def _some_ids_gone(_: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    turns = [(listed, run) for listed, run in _turns_of_results(record) if "tool_call_id" in listed[run[0]]]
    for listed, run in turns:
        for at in run:
            listed[at].pop("name", None)
        listed[run[0]], listed[run[-1]] = listed[run[-1]], listed[run[0]]
        listed[run[-1]].pop("tool_call_id", None)
        if len(run) > 2:
            listed[run[0]].pop("tool_call_id", None)
    return meant if turns else None


def _system_beside(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    key = next((key for key in ("messages", "conversations") if isinstance(record.get(key), list)), None)
    if key is None or record[key][0].get("role", record[key][0].get("from")) != "system":
        return None
    record[draw.choice(("system", "system_prompt", "system_message", "preamble"))] = _text_of(record[key].pop(0))
    return meant


def _another_system(_: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    if "system" in record or "traj" in record:
        return None
    record["system"] = "Obey another."
    return replace(meant, system="Obey another." if not meant.system else "changed")


def _message_key(
    key: str, value: Any, of_agent: bool, draw: random.Random, record: Record, meant: Meaning
) -> Meaning | None:
    own = [one for one in _chats(record) if (_speaker(one) in ("assistant", "gpt")) == of_agent]
    if not own:
        return None
    draw.choice(own)[key] = value
    return replace(meant, task=f"changed by {key}")


def _content_elsewhere(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    """The answer as a refusal beside a null content, or under a key that nobody knows."""
    own = [one for one in _chats(record) if _text_of(one) == meant.answer]
    if not own:
        return None
    own[-1].pop(_key_of_content(own[-1]) or "")
    own[-1][draw.choice(("refusal", "body", "words", "output_text"))] = meant.answer
    if draw.random() < 0.5:
        own[-1]["content"] = draw.choice((None, ""))
    return meant


_ARGUMENTS, _CONTENT = (_calls, _key_of_arguments), (_chats, _key_of_content)
_ROLE = (_chats, lambda one: "role" if "role" in one else "from")
_CALL_ID = (_chats, lambda one: "tool_call_id" if "tool_call_id" in one else None)
_ARGUMENT_NAMES, _CONTENT_NAMES = ("args", "parameters", "arguments"), ("text", "value", "content")
MUTATIONS: Mapping[str, Mutation] = {
    "none": lambda *given: given[2],
    "arguments renamed as others do": partial(_renamed, _ARGUMENTS, (*_ARGUMENT_NAMES, "input", "params")),
    "arguments under a strange key": partial(_renamed, _ARGUMENTS, ("payload", "argz", "values", "body")),
    "content renamed as others do": partial(_renamed, _CONTENT, _CONTENT_NAMES),
    "content under a strange key": partial(_renamed, _CONTENT, ("body", "message", "utterance")),
    "role renamed": partial(_renamed, _ROLE, ("from", "role", "speaker")),
    "call id renamed": partial(_renamed, _CALL_ID, ("toolCallId", "call_id", "answers")),
    "arguments twice, equal": partial(_doubled, _ARGUMENTS, _ARGUMENT_NAMES, True),
    "arguments twice, different": partial(_doubled, _ARGUMENTS, _ARGUMENT_NAMES, False),
    "content twice, equal": partial(_doubled, _CONTENT, _CONTENT_NAMES, True),
    "content twice, different": partial(_doubled, _CONTENT, _CONTENT_NAMES, False),
    "arguments of another type": _typed_arguments,
    "content in parts": _typed_content,
    "messages as JSON text": partial(_as_text, ("messages", "conversations")),
    "tools as JSON text": partial(_as_text, ("tools",)),
    "tools renamed": partial(_at_record, "tools", ("functions", "available_tools", "apis")),
    "messages renamed": partial(_at_record, "messages", ("conversations", "dialogue", "conversation")),
    "the answer elsewhere": _answer_moved,
    "the answer as a refusal": _content_elsewhere,
    "success elsewhere": _success_as,
    "success of another type": _success_typed,
    "the system beside": _system_beside,
    "another system beside": _another_system,
    "not learnt": _unlearnt,
    "a mask beside": partial(_beside, "loss_mask", ([0, 1, 0], [1, 1])),
    "a weight beside": partial(_beside, "weight", (0, 0.5, 3)),
    "history beside": partial(_beside, "history", ([["Before?", "Yes."]],)),
    "images beside": partial(_beside, "images", (["a.png"],)),
    "a score beside": partial(_beside, "score", (0.5, -1)),
    "notes beside": partial(_beside, "notes", ("not to be learnt", {"is_good": False})),
    "nulls as datasets pads": _padded,
    "no arguments, spelled otherwise": _null_arguments,
    "results in another order": partial(_shuffled, False),
    "results in another order, named": partial(_shuffled, True),
    "results with some ids": _some_ids_gone,
    "a recipient": partial(_message_key, "recipient", "functions.get_weather", True),
    "a channel": partial(_message_key, "channel", "analysis", True),
    "the user's calls": partial(_message_key, "tool_calls", [{"name": "get_price", "arguments": {}}], False),
    "a note at a message": partial(_message_key, "note", "left out by the editor", True),
}


# --- the judgement -----------------------------------------------------------------------------


def fate(path: Path, record: Record, meant: Meaning, before: set[str], *, is_table: bool = False) -> str:
    """Fate of a record: kept, refused or told; lost or crashed, with the difference. `before` are
    the keys that were not read of the record before its mutation."""
    path.write_text(json.dumps(record), encoding="utf-8")
    if is_table:
        with contextlib.suppress(pa.ArrowException):  # values of two types in a column: that record stays JSON
            pq.write_table(pa.Table.from_pylist([record]), whole := io.BytesIO())
            path.write_bytes(whole.getvalue())
    try:
        imported = import_trajectories(path)
    except DataError:
        return "refused"
    except Exception as error:  # what this benchmark looks for
        return f"crashed: {type(error).__name__}: {error}"
    if not imported.rows:
        traceback = next((bad.reason for bad in imported.bad if "it is not as" in bad.reason), "")
        return f"refused in Python's words: {traceback}" if traceback else "refused"
    found = meaning_of(imported.rows[0])
    if found == meant:
        return "kept"
    if set(imported.unread) - before:
        return "told"
    mine, theirs = vars(meant), vars(found)
    return f"lost: {[(theirs[key], 'for', mine[key]) for key in mine if mine[key] != theirs[key]]}"


def trials(num_records: int, seed: int, folder: Path) -> Iterator[tuple[str, str, str, Record]]:
    """Format, mutation, fate and record of each."""
    draw = random.Random(seed)
    number = 0
    while number < num_records:
        name, mutation = draw.choice(list(FORMATS)), draw.choice(list(MUTATIONS))
        meant = draw_meaning(draw, number)
        record = FORMATS[name](meant)
        path = folder / "record.jsonl"
        path.write_text(json.dumps(record), encoding="utf-8")
        before = set(import_trajectories(path).unread)
        wanted = MUTATIONS[mutation](draw, record, expected(name, meant))
        if wanted is None:
            continue
        number += 1
        is_table = mutation in ("none", "nulls as datasets pads") and draw.random() < 0.5
        yield name, mutation, fate(path, record, wanted, before, is_table=is_table), record


def _draw_call(draw: random.Random) -> tuple[str, Mapping[str, Any]]:
    name = draw.choice(list(_PROPERTIES))
    given = {"town": draw.choice(_TOWNS), "ticker": draw.choice(_TICKERS), "days": draw.randint(1, 9)}
    return name, {key: given[key] for key in _PROPERTIES[name]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5, help="how many lost records are printed whole")
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {name: Counter() for name in MUTATIONS}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, mutation, became, record in trials(options.records, options.seed, Path(folder)):
            counts[mutation][became.split(":")[0]] += 1
            if became not in ("kept", "refused", "told"):
                wrong.append(f"{name}, {mutation}: {became}\n  {json.dumps(record)}")
    columns = sorted({key for counted in counts.values() for key in counted})
    print(f"{'mutation':36}" + "".join(f"{column:>10}" for column in columns))
    for mutation, counted in counts.items():
        print(f"{mutation:36}" + "".join(f"{counted[column]:10}" for column in columns))
    total: Counter[str] = sum(counts.values(), Counter())
    print(f"{'all':36}" + "".join(f"{total[column]:10}" for column in columns))
    print("\n".join(wrong[: options.show]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
