"""Every knob that a message, an alarm or a page about them tells a person to turn is there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from posttrain.config.params import Params
from posttrain.dispatch.settings import DispatchSettings
from posttrain.tracking.alarms import RULES
from posttrain.train.online.params import OnlineParams
from posttrain.train.policy_params import TrainPolicyParams

REPOSITORY = Path(__file__).parents[1]
GIT_KEYS = {"user.name", "user.email"}
NO_KNOBS = {"a", "and", "edge", "it", "its", "number", "one", "or", "that", "the", "them", "world"}


def knobs_of(annotation: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all knobs, of every member of a choice."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield (*above, name)
            yield from knobs_of(field.annotation, (*above, name))
    for part in get_args(annotation):
        yield from knobs_of(part, above)


def ends_of(*places: tuple[str, ...]) -> str:
    """All that a knob may be called, one a line: `train_policy.lr`, `lr`."""
    return "\n".join(".".join(place[start:]) for place in places for start in range(len(place)))


ALL = ends_of(*knobs_of(Params), *knobs_of(DispatchSettings))
SECTIONS = {place[-2] for place in knobs_of(Params) if len(place) > 1} - {"report"}
ONLINE = ends_of(
    *(("train_policy", name) for name in TrainPolicyParams.model_fields),
    *knobs_of(OnlineParams, ("train_policy", "algorithm")),
)


def is_among(knob: str, names: str) -> bool:
    """True where one of the names is this one, in which `{}` and `*` stand for any letters."""
    pattern = re.escape(knob).replace(r"\{\}", r"\w+").replace(r"\*", r"\w+")
    return re.search(rf"^{pattern}$", names, re.MULTILINE) is not None


def texts_of(file: Path) -> Iterator[str]:
    """The string constants of a module but its docstrings, values in an f-string as `{}`."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inner.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def named_knobs(text: str) -> Iterator[str]:
    """The words that a person is told to turn, and those that begin with a section."""
    letters = r"[a-z](?:\w|\{\}|\*)*"
    if len(text.split()) > 3 and "{%" not in text:
        told = re.findall(rf"\b(?:raise|lower) `?({letters}(?:\.{letters})*)", text)
        told += re.findall(rf"\b(?:set|change|turn) `?({letters}(?:_{letters})+)(?![\w.(])", text)
        yield from (word for word in told if word not in NO_KNOBS)
    for word in re.findall(rf"(?<![\w./-])({letters}(?:\.{letters})+)(?![\w/(])", text):
        if word in GIT_KEYS:
            continue
        if word.split(".")[0] in SECTIONS and not word.endswith((".py", ".json", ".safetensors", ".jsonl", ".pt")):
            yield word


FILES = [file for folder in ("posttrain", "stages", "flows") for file in sorted((REPOSITORY / folder).rglob("*.py"))]


def test_every_knob_that_a_message_names_is_one_of_params_or_of_the_pools():
    named = {(file.name, knob) for file in FILES for text in texts_of(file) for knob in named_knobs(text)}
    assert len(named) > 100
    assert {one for one in named if not is_among(one[1], ALL)} == set()


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_an_alarm_advises_knobs_of_training_that_the_method_has(rule):
    """`beta` is a knob of DPO, and learning online has none of that name."""
    (advice,) = (one.advice for one in RULES if one.name == rule)
    page = (REPOSITORY / "docs/health.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if line.startswith(f"| `{rule}` |"))
    told = {*named_knobs(advice), *re.findall(r"`([\w.]+)`", line.rsplit("|", 2)[1])}
    assert {knob for knob in told if not is_among(knob, ONLINE)} == set()
    assert all(knob.startswith("train_policy.") for knob in named_knobs(advice)), "a name that can be searched for"
