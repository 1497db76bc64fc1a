"""Experiment files: overrides of knobs times seeds, all checked before the first one runs.

The file is edited and not written anew, so that a branch differs from its base in the lines that
the experiment is about, and every comment stays.
"""

import copy
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic
import yaml
from ruamel.yaml import YAML

from posttrain.config.params import parse_params, read_knobs, set_knobs
from posttrain.provenance.fingerprint import load_as_dvc
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.knob_errors import why_unread
from posttrain.runtime.knobs import nearest
from posttrain.runtime.plain_yaml import load_yaml

_NAME = re.compile(
    r"[a-z0-9]([a-z0-9_-]{0,48}[a-z0-9])?"
)  # part of a branch, a folder, an artifact's key, and of no command line


class Given(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class Override(Given):
    """`set` has dotted keys of `params.yaml` with their values; none is the base itself. `seeds`
    replace the plan's. `is_oracle`: it sees the world's expert; `is_control`: it holds a claim
    against something simpler."""

    name: str
    about: str = ""
    is_oracle: bool = False
    is_control: bool = False
    seeds: list[int] = []
    knobs: dict[str, Any] = pydantic.Field(default_factory=dict, alias="set")


class Shared(Given):
    """A file that several plans include: overrides, and the `base` that they all start from."""

    base: dict[str, Any] = {}
    overrides: list[Override]


class Plan(Given):
    """An experiment file: every override with every seed (without seeds, that of `params.yaml`).

    `set` are knobs that all overrides share; an override that sets one of them is refused. A plan
    with a `name` keeps a record in `reports/experiments`, where each override is compared with the
    one called `baseline` by `policy` (sft or policy). `run` are the overrides that run where none
    are named; `targets` the stages to bring up to date (empty: all).
    """

    name: str = ""
    about: str = ""
    include: str = ""
    base: dict[str, Any] = {}
    knobs: dict[str, Any] = pydantic.Field(default_factory=dict, alias="set")
    overrides: list[Override] = []
    seeds: list[int] = []
    run: list[str] = []
    baseline: str = ""
    policy: Literal["sft", "policy"] = "policy"
    targets: list[str] = []

    @pydantic.model_validator(mode="after")
    def _compared_is_evaluated(self) -> "Plan":
        evaluated = [one.removeprefix("evaluate@") for one in self.targets if one.startswith("evaluate@")]
        if self.name and evaluated and self.policy not in evaluated:
            raise ValueError(
                f"verdicts are on {self.policy} (policy), and targets evaluate {', '.join(evaluated)} alone: set "
                f"policy to {evaluated[0]}, or add evaluate@{self.policy} to targets"
            )
        return self

    def override(self, name: str) -> Override:
        """Raises ConfigurationError for a name that is none of the plan's."""
        names = [one.name for one in self.overrides]
        if name not in names:
            raise ConfigurationError(
                f"the plan has no override {name!r}; there are {', '.join(names)}.{nearest(name, names)}"
            )
        return self.overrides[names.index(name)]


@dataclass(frozen=True, slots=True)
class Variant:
    """One experiment. `name` is `dpo-seed1`; `knobs` has the seed too; `override` is `dpo`.
    `earlier`: the name of the one whose policy and replay buffer it begins from."""

    name: str
    knobs: Mapping[str, Any]
    override: str = ""
    earlier: str = ""

    @property
    def branch(self) -> str:
        return f"exp/{self.name}"

    def sentence(self) -> str:
        """`train_policy.lr = 0.0004, seed = 1`: values as JSON has them."""
        return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in self.knobs.items())


def read_plan(file: Path | None, overrides: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> Plan:
    """A YAML file, or these overrides; seeds that are given replace the file's. Raises
    ConfigurationError."""
    if (file is None) == (not overrides):
        raise ConfigurationError(
            "name a file with overrides, or give the overrides, and not both: an experiment is one or the other"
        )
    source = str(file) if file else "the parameters"
    try:
        if file is None:
            return Plan.model_validate({"overrides": [dict(one) for one in overrides], "seeds": list(seeds)})
        plan = Plan.model_validate(read_knobs(file.read_bytes(), source=source))
        if plan.include:
            included = file.with_name(plan.include)
            shared = Shared.model_validate(read_knobs(included.read_bytes(), source=str(included)))
            more = {"base": {**shared.base, **plan.base}, "overrides": [*shared.overrides, *plan.overrides]}
            plan = plan.model_copy(update=more)
    except (OSError, pydantic.ValidationError, TypeError) as error:
        why = why_unread(error, Plan)
        raise ConfigurationError(f"no experiment can be read from {source}, so none was run: {why}") from error
    if not plan.overrides:
        raise ConfigurationError(f"{source} has no overrides, so there is nothing to run: add some, or include a file")
    for name in filter(None, (plan.baseline, *plan.run)):
        plan.override(name)
    return plan.model_copy(update={"seeds": list(seeds)}) if seeds else plan


def variants(plan: Plan, params_text: str, *, only: Sequence[str] = ()) -> list[Variant]:
    """Seed by seed, so that all of one seed can be compared early; `only` these overrides.

    Raises ConfigurationError for a name that cannot be a branch's, one that stands twice, and knobs
    that are refused.
    """
    chosen = [plan.override(name) for name in dict.fromkeys(only or plan.run)] or plan.overrides
    common = plan.seeds or [read_knobs(params_text, source="params.yaml")["seed"]]
    pairs = [(_checked_seed(seed), one) for one in chosen for seed in (one.seeds or common)]
    order = list(dict.fromkeys(seed for seed, _ in pairs))
    pairs.sort(key=lambda pair: order.index(pair[0]))
    found = [variant_of(plan, one, seed) for seed, one in pairs]
    names = [variant.name for variant in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"{', '.join(twice)} stands twice in the plan: both would have the same branch. Give each a name of its own"
        )
    for variant in {variant.override: variant for variant in found}.values():
        with_knobs(params_text, variant)
    return found


def variant_of(plan: Plan, override: Override, seed: int) -> Variant:
    """The plan's shared knobs, then the override's, then the seed."""
    name = "-".join(filter(None, (plan.name, override.name)))
    return Variant(f"{_checked(name)}-seed{seed}", {**_folded(plan, override), "seed": seed}, override.name)


def _folded(plan: Plan, override: Override) -> dict[str, Any]:
    """A key below another key that was set is put into that one's value."""
    for key in override.knobs:
        if taken := [name for name in plan.knobs if _overlap(key, name)]:
            raise ConfigurationError(
                f"{override.name} sets {key}, and the plan sets {taken[0]} for all overrides alike, so that they can "
                "be compared: change it there, or leave it out"
            )
    folded: dict[str, Any] = {}
    for key, value in [*plan.base.items(), *plan.knobs.items(), *override.knobs.items()]:
        above = next((name for name in folded if key.startswith(f"{name}.")), None)
        if above is None:
            folded[key] = copy.deepcopy(value)
            continue
        *path, last = key.removeprefix(f"{above}.").split(".")
        section = folded[above]
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            raise ConfigurationError(
                f"{override.name} sets {key}, and {above} as it is set for all has no section {'.'.join(path)}"
            )
        section[last] = copy.deepcopy(value)
    return folded


def with_knobs(params_text: str, variant: Variant) -> str:
    """`params.yaml` with the variant's values, every other line as it is. Raises ConfigurationError
    where the result is no `params.yaml`."""
    wanted = read_knobs(params_text, source="params.yaml")
    edits = list(set_knobs(wanted, variant.knobs, source=variant.branch))
    parse_params(wanted, source=f"params.yaml of {variant.branch}")
    text = _edited(params_text, edits) if edits else params_text
    if load_yaml(text, "params.yaml") != wanted:  # an alias lends its section to others, which would change too
        raise ConfigurationError(
            f"{variant.branch}: params.yaml cannot be edited so that it reads as wanted; "
            "write these knobs there by hand"
        )
    return text


def _edited(text: str, edits: Sequence[tuple[Sequence[str], str, Any]]) -> str:
    """The text with values at (section, key); its comments, quotes and numbers stay as written."""
    editor = YAML()
    editor.width, editor.preserve_quotes = 100_000, True
    editor.indent(mapping=2, sequence=4, offset=2)
    editor.representer.add_representer(type(None), lambda to, _: to.represent_scalar("tag:yaml.org,2002:null", "null"))
    content = editor.load(text)
    for path, key, value in edits:
        section = content
        for part in path:
            section = section[part]
        # Written by PyYAML, as which DVC and the stages read: `4.0e-05`, and quotes around "1e-5".
        flow = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=math.inf, sort_keys=False)
        section[key] = editor.load(flow)
    edited = io.StringIO()
    editor.dump(content, edited)
    return edited.getvalue()


def _overlap(one: str, other: str) -> bool:
    """True where one key is the other, or lies below it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


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


class _Dumper(yaml.SafeDumper):
    """Strings get quotes where one without would be another thing for PyYAML, or for DVC: `on`,
    `1e-5`."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_word = re.fullmatch(r"[^\W\d][\w./-]*", text) and load_yaml(text, "a knob") == text == load_as_dvc(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_word else '"')


_Dumper.add_representer(str, _represent_text)
