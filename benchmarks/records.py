"""Does the import of trajectories lose a meaning in silence? Records of every format are generated
with a meaning that is known, their keys are changed, and the import has to give that meaning, to
refuse the record, or to say which key it did not read.

    python -m benchmarks.records --records 5000 --seed 1

A meaning is the system's text, the task, each call with its arguments and its own result, what the
agent says, what of it is learnt, and whether people wanted it. The table counts by mutation what
became of it; any `lost` or `crashed` ends the command with 1.
"""

import argparse
import contextlib
import copy
import io
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
    """What a record says, whatever its keys."""

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
    """What an imported row says."""
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
    messages: list[Record] = [{"role": "system", "content": meant.system}] if meant.system else []
    messages.append({"role": "user", "content": meant.task})
    for turn, step in enumerate(meant.steps):
        calls = [
            {"id": f"c{turn}_{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for at, (name, given) in enumerate(step.calls)
        ]
        messages.append({"role": "assistant", "content": step.said or None, **({"tool_calls": calls} if calls else {})})
        for call, result in zip(calls, step.results, strict=True):
            name = call["function"]["name"]  # type: ignore[index]
            messages.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": result})
    return _judged({"messages": messages, "tools": copy.deepcopy(TOOLS)}, meant)


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
        blocks: list[Record] = [{"type": "text", "text": step.said}] if step.said else []
        blocks += [
            {"type": "tool_use", "id": f"t{turn}_{at}", "name": name, "input": dict(given)}
            for at, (name, given) in enumerate(step.calls)
        ]
        messages.append({"role": "assistant", "content": blocks})
        if step.results:
            told = [
                {"type": "tool_result", "tool_use_id": f"t{turn}_{at}", "content": result}
                for at, result in enumerate(step.results)
            ]
            messages.append({"role": "user", "content": told})
    tools = [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
        for one in (copy.deepcopy(tool["function"]) for tool in TOOLS)
    ]
    beside = {"system": meant.system} if meant.system else {}
    return _judged({**beside, "messages": messages, "tools": tools}, meant)


def _sharegpt(meant: Meaning) -> Record:
    turns: list[Record] = [{"from": "human", "value": meant.task}]
    for step in meant.steps:
        if step.calls:
            calls = [{"name": name, "arguments": dict(given)} for name, given in step.calls]
            turns.append({"from": "function_call", "value": json.dumps(calls)})
            turns += [{"from": "observation", "value": result} for result in step.results]
        else:
            turns.append({"from": "gpt", "value": step.said})
    beside = {"system": meant.system} if meant.system else {}
    return _judged({**beside, "conversations": turns, "tools": json.dumps([one["function"] for one in TOOLS])}, meant)


def _spoken(write: Callable[[Step], str], system: str = "", *, has_tools: bool = True) -> Callable[[Meaning], Record]:
    """A conversation whose calls stand in the agent's text; `system` has the tools as text."""

    def record(meant: Meaning) -> Record:
        about = f"{meant.system}{system}"
        turns = [{"from": "system", "value": about}] if about else []
        turns.append({"from": "human", "value": meant.task})
        for step in meant.steps:
            turns.append({"from": "gpt", "value": write(step) if step.calls else step.said})
            turns += [{"from": "tool", "value": result} for result in step.results]
        tools = {"tools": copy.deepcopy(TOOLS)} if has_tools else {}
        return _judged({"conversations": turns, **tools}, meant)

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
    asked = {"messages": record.pop("prompt"), "tools": record.pop("tools")}
    return {
        "input": asked,
        "preferred_output": record.pop("chosen"),
        "non_preferred_output": record.pop("rejected"),
        **record,
    }


def _ui_messages(meant: Meaning) -> Record:
    """Vercel's: calls and results are parts of one message of the agent."""
    parts: list[Record] = []
    for turn, step in enumerate(meant.steps):
        if step.said:
            parts.append({"type": "text", "text": step.said})
        for at, ((name, given), result) in enumerate(zip(step.calls, step.results, strict=True)):
            parts.append(
                {
                    "type": f"tool-{name}",
                    "toolCallId": f"u{turn}_{at}",
                    "state": "output-available",
                    "input": dict(given),
                    "output": result,
                }
            )
        parts.append({"type": "step-start"})
    about = [{"role": "system", "parts": [{"type": "text", "text": meant.system}]}] if meant.system else []
    messages: list[Record] = [
        *about,
        {"role": "user", "parts": [{"type": "text", "text": meant.task}]},
        {"role": "assistant", "parts": parts},
    ]
    return _judged({"messages": messages, "tools": copy.deepcopy(TOOLS)}, meant)


def _telemetry(meant: Meaning) -> Record:
    """OpenTelemetry's messages of parts."""
    messages: list[Record] = []
    if meant.system:
        messages.append({"role": "system", "parts": [{"type": "text", "content": meant.system}]})
    messages.append({"role": "user", "parts": [{"type": "text", "content": meant.task}]})
    for turn, step in enumerate(meant.steps):
        parts: list[Record] = [{"type": "text", "content": step.said}] if step.said else []
        parts += [
            {"type": "tool_call", "id": f"o{turn}_{at}", "name": name, "arguments": dict(given)}
            for at, (name, given) in enumerate(step.calls)
        ]
        messages.append({"role": "assistant", "parts": parts})
        for at, result in enumerate(step.results):
            response = {"type": "tool_call_response", "id": f"o{turn}_{at}", "response": result}
            messages.append({"role": "tool", "parts": [response]})
    return _judged({"messages": messages, "tools": copy.deepcopy(TOOLS)}, meant)


def _tau_bench(meant: Meaning) -> Record:
    chat = _openai(meant)
    return {"task_id": 1, "trial": 0, "reward": float(bool(meant.success)), "traj": chat["messages"], "info": {}}


def _judged(record: Record, meant: Meaning) -> Record:
    return record if meant.success is None else {**record, "success": meant.success}


_LISTED = json.dumps([tool["function"] for tool in TOOLS])
FORMATS: Mapping[str, Callable[[Meaning], Record]] = {
    "openai": _openai,
    "flat calls": _flat_calls,
    "anthropic": _anthropic,
    "sharegpt": _sharegpt,
    "hermes": _spoken(_tagged("tool_call"), f"\n<tools>{_LISTED}</tools>", has_tools=False),
    "glaive": _spoken(_tagged("functioncall")),
    "toolace": _spoken(_pythonic, f"\nFunctions in JSON that you can call:\n{_LISTED}", has_tools=False),
    "pythonic": _spoken(_pythonic),
    "llama": _spoken(_llama),
    "completion": _completion,
    "preference": _preference,
    "openai preference": _openai_preference,
    "vercel": _ui_messages,
    "telemetry": _telemetry,
    "tau_bench": _tau_bench,
}


def expected(name: str, meant: Meaning) -> Meaning:
    """Of the meaning what the format can hold."""
    if name == "tau_bench":
        return replace(meant, success=bool(meant.success))
    if name in ("hermes", "toolace"):  # what is left of the system's text once the tools are taken out
        about = "" if name == "hermes" else "\nFunctions in JSON that you can call:"
        return replace(meant, system=f"{meant.system}{about}".strip())
    return meant


# --- the mutations -----------------------------------------------------------------------------

# It changes a record, and may change what it means. None where the record has no such place.
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


def _renamed(places_of: Places, *names: str) -> Mutation:
    choose, find = places_of

    def mutate(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
        places = [one for one in choose(record) if find(one)]
        if not places:
            return None
        name = draw.choice(names)
        for place in places if draw.random() < 0.5 else [draw.choice(places)]:
            if name not in place and (key := find(place)):
                place[name] = place.pop(key)
        return meant

    return mutate


def _doubled(places_of: Places, *names: str, is_equal: bool) -> Mutation:
    choose, find = places_of

    def mutate(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
        places = [one for one in choose(record) if find(one)]
        if not places:
            return None
        place, name = draw.choice(places), draw.choice(names)
        if name in place:
            return None
        value = copy.deepcopy(place[find(place) or ""])
        place[name] = value if is_equal else {"town": "Paris"} if isinstance(value, dict) else "Something else."
        return meant

    return mutate


def _at_record(key: str, others: tuple[str, ...]) -> Mutation:
    def mutate(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
        if key not in record:
            return None
        record[draw.choice(others)] = record.pop(key)
        return meant

    return mutate


def _beside(key: str, values: tuple[Any, ...]) -> Mutation:
    """A key that would change what the record means, or mean nothing, beside all others."""

    def mutate(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
        if key in record:
            return None
        record[key] = draw.choice(values)
        return replace(meant, task=f"changed by {key}")  # no row says so

    return mutate


def _answer_moved(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    key = next((key for key in ("messages", "conversations") if isinstance(record.get(key), list)), None)
    if key is None or _text_of(record[key][-1]) != meant.answer or "step-start" in str(record[key][-1]):
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
    speakers = ("assistant", "gpt", "function_call")
    own = [one for one in _chats(record) if one.get("role", one.get("from")) in speakers]
    if len(own) != len(meant.steps) or len(own) < 2:
        return None
    place = draw.randrange(len(own))
    name, value = draw.choice(
        (("weight", 0), ("loss", False), ("train", False), ("training", False), ("loss_weight", 0.0))
    )
    own[place][name] = value
    steps = [replace(step, is_learnt=False) if at == place else step for at, step in enumerate(meant.steps)]
    return replace(meant, steps=tuple(steps))


def _success_as(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    if "success" not in record:
        return None
    success = record.pop("success")
    key = draw.choice(("label", "kto_tag", "is_correct", "passed", "score", "verdict", "label"))
    record[key] = draw.choice((success, success, int(success), str(success)))
    return meant


def _typed_arguments(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    calls = _calls(record)
    if not calls:
        return None
    for call in calls:
        key = _key_of_arguments(call)
        assert key is not None
        given = json.loads(call[key]) if isinstance(call[key], str) else call[key]
        call[key] = draw.choice((given, json.dumps(given), json.dumps(json.dumps(given))))
    return meant


def _typed_content(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    places = [one for one in _chats(record) if isinstance(one.get(_key_of_content(one) or ""), str)]
    places = [one for one in places if one.get("from") != "function_call"]
    if not places:
        return None
    for place in places:
        key = _key_of_content(place)
        assert key is not None
        name = draw.choice(("text", "text", "value", "content", "words"))
        place[key] = [{"type": "text", name: place[key]}]
    return meant


def _as_text(*keys: str) -> Mutation:
    def mutate(_: random.Random, record: Record, meant: Meaning) -> Meaning | None:
        own = [key for key in keys if isinstance(record.get(key), list)]
        for key in own:
            record[key] = json.dumps(record[key])
        return meant if own else None

    return mutate


def _padded(_: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    """As `datasets` exports: each object of a list has the keys of all, and so have arguments."""
    for listed in [value for one in _dicts(record) for value in one.values() if isinstance(value, list)]:
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
        key = _key_of_arguments(call)
        assert key is not None
        call[key] = draw.choice((None, ""))
        if draw.random() < 0.3:
            del call[key]
    return meant if empty else None


def _results(record: Record) -> list[tuple[list[Any], list[int]]]:
    """Of each list that holds results, where they stand, those of a turn together."""
    found = []
    for listed in [value for one in _dicts(record) for value in one.values() if isinstance(value, list)]:
        run: list[int] = []
        for at, one in enumerate([*listed, None]):
            is_result = isinstance(one, dict) and (one.get("role") == "tool" or one.get("type") == "tool_result")
            if is_result:
                run.append(at)
            elif run:
                found.append((listed, run))
                run = []
    return found


def _shuffled(*, without_ids: bool) -> Mutation:
    def mutate(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
        turns = [(listed, run) for listed, run in _results(record) if len(run) > 1]
        if not turns:
            return None
        for listed, run in turns:
            if without_ids:
                names = [listed[at].get("name") for at in run]
                if None in names or len(set(names)) < len(names) or "parts" in listed[run[0]]:
                    return None  # nothing would tell the results apart
            moved = [listed[at] for at in run]
            draw.shuffle(moved)
            for at, one in zip(run, moved, strict=True):
                listed[at] = one
                if without_ids:
                    one.pop("tool_call_id", None)
        return meant

    return mutate


def _some_ids_gone(_: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    turns = [(listed, run) for listed, run in _results(record) if len(run) > 1 and "tool_call_id" in listed[run[0]]]
    if not turns:
        return None
    for listed, run in turns:
        for at in run:
            listed[at].pop("name", None)
        listed[run[0]], listed[run[-1]] = listed[run[-1]], listed[run[0]]
        listed[run[-1]].pop("tool_call_id", None)
        if len(run) > 2:
            listed[run[0]].pop("tool_call_id", None)
    return meant


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


def _message_key(key: str, value: Any, *, of_agent: bool = True) -> Mutation:
    def mutate(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
        own = [one for one in _chats(record) if (one.get("role", one.get("from")) in ("assistant", "gpt")) == of_agent]
        if not own:
            return None
        draw.choice(own)[key] = value
        return replace(meant, task=f"changed by {key}")

    return mutate


def _content_elsewhere(draw: random.Random, record: Record, meant: Meaning) -> Meaning | None:
    """The answer as a refusal beside a null content, or under a key that nobody knows."""
    own = [one for one in _chats(record) if _text_of(one) == meant.answer and "step-start" not in str(one)]
    if not own:
        return None
    key = _key_of_content(own[-1])
    assert key is not None
    own[-1].pop(key)
    own[-1][draw.choice(("refusal", "body", "words", "output_text"))] = meant.answer
    if draw.random() < 0.5:
        own[-1]["content"] = draw.choice((None, ""))
    return meant


_ARGUMENTS = (_calls, _key_of_arguments)
_CONTENT = (_chats, _key_of_content)
MUTATIONS: Mapping[str, Mutation] = {
    "none": lambda *given: given[2],
    "arguments renamed as others do": _renamed(_ARGUMENTS, "args", "parameters", "input", "arguments", "params"),
    "arguments under a strange key": _renamed(_ARGUMENTS, "payload", "argz", "values", "body"),
    "content renamed as others do": _renamed(_CONTENT, "text", "value", "content"),
    "content under a strange key": _renamed(_CONTENT, "body", "message", "utterance"),
    "role renamed": _renamed((_chats, lambda one: "role" if "role" in one else "from"), "from", "role", "speaker"),
    "call id renamed": _renamed(
        (_chats, lambda one: "tool_call_id" if "tool_call_id" in one else None), "toolCallId", "call_id", "answers"
    ),
    "arguments twice, equal": _doubled(_ARGUMENTS, "args", "parameters", "arguments", is_equal=True),
    "arguments twice, different": _doubled(_ARGUMENTS, "args", "parameters", "arguments", is_equal=False),
    "content twice, equal": _doubled(_CONTENT, "text", "value", "content", is_equal=True),
    "content twice, different": _doubled(_CONTENT, "text", "value", "content", is_equal=False),
    "arguments of another type": _typed_arguments,
    "content in parts": _typed_content,
    "messages as JSON text": _as_text("messages", "conversations"),
    "tools as JSON text": _as_text("tools"),
    "tools renamed": _at_record("tools", ("functions", "available_tools", "apis")),
    "messages renamed": _at_record("messages", ("conversations", "dialogue", "conversation")),
    "the answer elsewhere": _answer_moved,
    "the answer as a refusal": _content_elsewhere,
    "success elsewhere": _success_as,
    "success of another type": lambda draw, record, meant: (
        record.update(success=draw.choice(("yes", 1, [True], "false"))) or meant if "success" in record else None
    ),
    "the system beside": _system_beside,
    "another system beside": _another_system,
    "not learnt": _unlearnt,
    "a mask beside": _beside("loss_mask", ([0, 1, 0], [1, 1])),
    "a weight beside": _beside("weight", (0, 0.5, 3)),
    "history beside": _beside("history", ([["Before?", "Yes."]],)),
    "images beside": _beside("images", (["a.png"],)),
    "a score beside": _beside("score", (0.5, -1)),
    "notes beside": _beside("notes", ("not to be learnt", {"is_good": False})),
    "nulls as datasets pads": _padded,
    "no arguments, spelled otherwise": _null_arguments,
    "results in another order": _shuffled(without_ids=False),
    "results in another order, named": _shuffled(without_ids=True),
    "results with some ids": _some_ids_gone,
    "a recipient": _message_key("recipient", "functions.get_weather"),
    "a channel": _message_key("channel", "analysis"),
    "the user's calls": _message_key("tool_calls", [{"name": "get_price", "arguments": {}}], of_agent=False),
    "a note at a message": _message_key("note", "left out by the editor"),
}


# --- the judgement -----------------------------------------------------------------------------


def fate(path: Path, record: Record, meant: Meaning, before: set[str], *, is_table: bool = False) -> str:
    """kept, refused or told; lost or crashed with what was lost. `before` are the keys that were
    not read of the record as it was."""
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
