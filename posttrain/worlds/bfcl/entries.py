"""The package's entries: the user's words in each turn, the gold's calls there (read from text and
never evaluated), and the functions that are added later.

The four sets are variants of the same 200 scenarios by number: `base`, with functions that are
added late, with a detail that the user gives late, and with long results. Two numbers that open
with the same words are one scenario.
"""

import ast
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

from posttrain.worlds.bfcl import package
from posttrain.worlds.bfcl.params import SetName
from posttrain.worlds.bfcl.schemas import schemas_of

SETS: tuple[SetName, ...] = get_args(SetName)


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments; `values` are those that gold text gives without a name."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    values: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One conversation. `turns` are the user's messages, `gold_texts` the gold calls of each as the
    package writes them. `added` are the functions announced in a turn, by its index. `raw` is the
    entry as the package's checker takes it."""

    entry_id: str
    set_name: SetName
    scenario: str
    classes: tuple[str, ...]
    turns: tuple[str, ...]
    gold_texts: tuple[tuple[str, ...], ...]
    added: Mapping[int, tuple[str, ...]]
    raw: Mapping[str, Any]

    @property
    def offered(self) -> tuple[str, ...]:
        """The functions that the agent knows at the beginning."""
        late = {name for names in self.added.values() for name in names}
        return tuple(name for class_name in self.classes for name in schemas_of(class_name) if name not in late)

    @property
    def gold(self) -> tuple[tuple[Call, ...], ...]:
        """The gold calls of each turn, every argument by its name."""
        return tuple(tuple(_named(read_gold(text)) for text in turn) for turn in self.gold_texts)


def read_gold(text: str) -> Call:
    """The call that a line of gold text makes: `sort('a.txt')`, `cd(folder='temp')`. Raises
    ValueError where an argument is no plain value."""
    tree: Any = ast.parse(text, mode="eval").body
    arguments = {word.arg: ast.literal_eval(word.value) for word in tree.keywords}
    return Call(tree.func.id, arguments, tuple(ast.literal_eval(value) for value in tree.args))


@cache
def entries(set_name: SetName) -> tuple[Entry, ...]:
    """The 200 entries of a set, in the package's order."""
    first: dict[str, str] = {}
    scenarios = [
        first.setdefault(raw["question"][0][0]["content"], f"scenario_{index}")
        for index, raw in enumerate(package.questions("base"))
    ]
    return tuple(
        _entry(raw, gold, set_name, scenario)
        for raw, gold, scenario in zip(package.questions(set_name), package.answers(set_name), scenarios, strict=True)
    )


@cache
def entry_with(entry_id: str) -> Entry:
    """An entry by the package's id. Raises KeyError where there is none."""
    return {entry.entry_id: entry for set_name in SETS for entry in entries(set_name)}[entry_id]


def bound(call: Call) -> Mapping[str, Any]:
    """The call with every argument that its function takes, what was left out included; equal for
    calls that do the same. As it stands where it does not fit the function."""
    try:
        given = _parameters()[call.name].bind(*call.values, **call.arguments)
    except TypeError:
        return {"function": call.name} | dict(call.arguments)
    given.apply_defaults()
    return {"function": call.name} | given.arguments


def _entry(raw: Mapping[str, Any], gold: Sequence[Sequence[str]], set_name: SetName, scenario: str) -> Entry:
    added = {int(turn): tuple(names) for turn, names in raw.get("missed_function", {}).items()}
    schemas = {
        name: schema for class_name in raw["involved_classes"] for name, schema in schemas_of(class_name).items()
    }
    return Entry(
        entry_id=raw["id"],
        set_name=set_name,
        scenario=scenario,
        classes=tuple(raw["involved_classes"]),
        turns=tuple(
            "\n".join(message["content"] for message in messages) or _words([schemas[name] for name in added[turn]])
            for turn, messages in enumerate(raw["question"])
        ),
        gold_texts=tuple(tuple(turn) for turn in gold),
        added=added,
        raw=raw,
    )


def _words(schemas: Sequence[Mapping[str, Any]]) -> str:
    """The user's words when functions are added: as the package tells an agent that reads functions
    in its prompt, since what stands at the head of a conversation cannot grow."""
    words = package.module("constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
    return f"{json.dumps(list(schemas), ensure_ascii=False)}\n{words}"


def _named(call: Call) -> Call:
    names = tuple(_parameters()[call.name].parameters)
    return Call(call.name, dict(zip(names, call.values, strict=False)) | dict(call.arguments))


@cache
def _parameters() -> Mapping[str, inspect.Signature]:
    """The signature of each function, from its class: the documents have another order for one."""
    return {
        name: inspect.signature(getattr(package.class_named(class_name)(), name))
        for class_name in package.CLASSES
        for name in schemas_of(class_name)
    }
