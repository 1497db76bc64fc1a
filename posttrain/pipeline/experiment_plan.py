"""A plan asks for experiments: overrides of knobs times seeds, as texts of `params.yaml`, all
checked before the first one runs.

The file is edited and not written anew, so that a branch differs from its base in the lines that
the experiment is about, and every comment stays.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from posttrain.exits import ConfigurationError
from posttrain.params import parse_params, read_knobs
from posttrain.plain_yaml import load_yaml

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
    content = _yaml().load(params_text)
    for key, value in variant.knobs.items():
        *path, last = key.split(".")
        _section(wanted, path, key, variant)[last] = value
        _section(content, path, key, variant)[last] = _quoted(value)
    parse_params(wanted, source=f"params.yaml of {variant.branch}")
    written = io.StringIO()
    _yaml().dump(content, written)
    if load_yaml(written.getvalue(), "params.yaml") != wanted:
        raise ConfigurationError(
            f"{variant.branch}: params.yaml cannot be edited so that it reads as wanted; "
            "write these knobs there by hand"
        )
    return written.getvalue()


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


def _quoted(value: Any) -> Any:
    """Strings get quotes where one without would be another thing in YAML 1.1, which PyYAML reads:
    `on`, `1e-5`."""
    if isinstance(value, str) and (not re.fullmatch(r"[^\W\d][\w./-]*", value) or load_yaml(value, "a knob") != value):
        return DoubleQuotedScalarString(value)
    if isinstance(value, Mapping):
        return {key: _quoted(inner) for key, inner in value.items()}
    return [_quoted(inner) for inner in value] if isinstance(value, list) else value


class _Representer(RoundTripRepresenter):
    """`1.0e-05`: PyYAML reads `1e-05` as a string. `null`, not nothing, as a file has it."""

    def represent_float(self, data: float) -> Any:
        text = repr(data)
        return self.represent_scalar(
            "tag:yaml.org,2002:float", text.replace("e", ".0e") if "e" in text and "." not in text else text
        )

    def represent_null(self, _: None) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:null", "null")


_Representer.add_representer(float, _Representer.represent_float)
_Representer.add_representer(type(None), _Representer.represent_null)


def _yaml() -> YAML:
    editor = YAML()
    editor.Representer = _Representer
    editor.preserve_quotes = True
    editor.width = 10_000  # no line of a person's is broken
    editor.indent(mapping=2, sequence=4, offset=2)
    return editor
