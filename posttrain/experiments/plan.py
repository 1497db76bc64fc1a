"""A plan asks for experiments: overrides of knobs times seeds, as texts of `params.yaml`, all
checked before the first one runs.

The file is edited and not written anew, so that a branch differs from its base in the lines that
the experiment is about, and every comment stays.
"""

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import yaml

from posttrain.config.params import parse_params, read_knobs
from posttrain.provenance.fingerprint import load_as_dvc
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.plain_yaml import load_yaml

_NAME = re.compile(
    r"[a-z0-9]([a-z0-9_-]{0,48}[a-z0-9])?"
)  # part of a branch, a folder, an artifact's key, and of no command line


class Override(pydantic.BaseModel):
    """`set` has dotted keys of `params.yaml` with their values; none is the base itself."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    knobs: dict[str, Any] = pydantic.Field(default_factory=dict, alias="set")


class Plan(pydantic.BaseModel):
    """Every override with every seed; without seeds, with that of `params.yaml`."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    overrides: list[Override] = pydantic.Field(min_length=1)
    seeds: list[int] = []


@dataclass(frozen=True, slots=True)
class Variant:
    """One experiment. `name` is `dpo-seed1`; `knobs` has the seed too."""

    name: str
    knobs: Mapping[str, Any]

    @property
    def branch(self) -> str:
        return f"exp/{self.name}"

    def sentence(self) -> str:
        """`train_policy.lr = 0.0004, seed = 1`: values as JSON has them."""
        return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in self.knobs.items())


def read_plan(file: Path | None, overrides: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Plan:
    """A YAML file with `overrides` and `seeds`, or these; seeds that are given go before the
    file's. Raises ConfigurationError."""
    if (file is None) == (not overrides):
        raise ConfigurationError(
            "name a file with overrides, or give the overrides, and not both: an experiment is one or the other"
        )
    source = str(file) if file else "the parameters"
    try:
        given = {"overrides": [dict(one) for one in overrides]}
        content = read_knobs(file.read_bytes(), source=source) if file else given
        return Plan.model_validate({**content, "seeds": list(seeds)} if seeds else content)
    except (OSError, pydantic.ValidationError, TypeError) as error:
        raise ConfigurationError(f"no experiment can be read from {source}, so none was run: {error}") from error


def variants(plan: Plan, params_text: str) -> list[Variant]:
    """In the plan's order. Raises ConfigurationError for a name that cannot be a branch's, one that
    stands twice, and knobs that are refused."""
    seeds = plan.seeds or [read_knobs(params_text, source="params.yaml")["seed"]]
    found = [
        Variant(f"{_checked(one.name)}-seed{seed}", {**one.knobs, "seed": _checked_seed(seed)})
        for one in plan.overrides
        for seed in seeds
    ]
    names = [variant.name for variant in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"{', '.join(twice)} stands twice in the plan: both would have the same branch. Give each a name of its own"
        )
    for variant in found:
        with_knobs(params_text, variant)
    return found


def with_knobs(params_text: str, variant: Variant) -> str:
    """`params.yaml` with the variant's values, every other line as it is. Raises ConfigurationError
    where the result is no `params.yaml`."""
    wanted = read_knobs(params_text, source="params.yaml")
    edits: list[tuple[list[str], str, Any]] = []
    for key, value in variant.knobs.items():
        *path, last = key.split(".")
        section = _section(wanted, path, key, variant)
        if last not in section or json.dumps(section[last]) != json.dumps(value):
            section[last] = value
            edits.append((path, last, value))
    parse_params(wanted, source=f"params.yaml of {variant.branch}")
    text = params_text
    with contextlib.suppress(StopIteration, yaml.YAMLError):  # a section that another lends: it reads otherwise, below
        for edit in edits:
            text = _with_value(text, *edit)
    if load_yaml(text, "params.yaml") != wanted:
        raise ConfigurationError(
            f"{variant.branch}: params.yaml cannot be edited so that it reads as wanted; "
            "write these knobs there by hand"
        )
    return text


def _section(content: Any, path: Sequence[str], key: str, variant: Variant) -> Any:
    for part in path:
        content = content.get(part) if isinstance(content, Mapping) else None
    if not isinstance(content, Mapping):
        raise ConfigurationError(
            f"{variant.branch} sets {key!r}, and params.yaml has no section {'.'.join(path)!r}; nothing was run"
        )
    return content


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"an experiment cannot be named {name!r}, because its branch and folder are: "
            "1 to 50 lower-case letters, digits and inner - or _"
        )
    return name


def _checked_seed(seed: int) -> int:
    if seed < 0:
        raise ConfigurationError(f"seed {seed} is negative; a seed counts from 0")
    return seed


def _with_value(text: str, path: Sequence[str], key: str, value: Any) -> str:
    """The text with one value put in the place of another, on the line of its key, or with a key
    more at the end of its section. A comment behind it keeps its column."""
    section: Any = yaml.compose(text, yaml.SafeLoader)
    for part in path:
        section = next(node for name, node in section.value if name.value == part)
    new = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False)
    new = new.removesuffix("\n").removesuffix("\n...")
    pair: Any = next((pair for pair in section.value if pair[0].value == key), None)
    if pair is None and section.flow_style:
        end = section.end_mark.index - 1
        return f"{text[:end]}{', ' * bool(section.value)}{key}: {new}{text[end:]}"
    if pair is None:
        end = _end_of_line(text, _end_of(section, text))
        return f"{text[:end]}\n{' ' * section.value[0][0].start_mark.column}{key}: {new}{text[end:]}"
    name, old = pair
    start, end = text.index(":", name.end_mark.index) + 1, _end_of(old, text)
    if old.start_mark.line > name.end_mark.line:  # a block: its lines go, with their comments
        return f"{text[:start]} {new}{text[start : _end_of_line(text, start)]}{text[_end_of_line(text, end) :]}"
    behind, rest = text[end : _end_of_line(text, end)], text[_end_of_line(text, end) :]
    if spaces := re.match(r"([^#\"']*?)( +)(?=#)", behind):
        width = max(2, len(spaces[2]) + (end - start) - len(f" {new}"))
        behind = f"{spaces[1]}{' ' * width}{behind[spaces.end() :]}"
    return f"{text[:start]} {new}{behind}{rest}"


def _end_of(node: Any, text: str) -> int:
    """Of what a person sees of it: a block's own end lies behind the comments that follow."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        return _end_of(node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1], text)
    start: int = node.start_mark.index
    return max(start, len(text[: node.end_mark.index].rstrip()))


def _end_of_line(text: str, place: int) -> int:
    end = text.find("\n", place)
    return end if end >= 0 else len(text)


class _Dumper(yaml.SafeDumper):
    """Strings get quotes where one without would be another thing for PyYAML, or for DVC: `on`,
    `1e-5`."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_word = re.fullmatch(r"[^\W\d][\w./-]*", text) and load_yaml(text, "a knob") == text == load_as_dvc(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_word else '"')


_Dumper.add_representer(str, _represent_text)
