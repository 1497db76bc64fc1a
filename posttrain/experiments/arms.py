"""Turns methods x seeds in a regime into experiments: two YAML files that a person edits become
knobs of `params.yaml`, all checked before the first run.

A method is what differs from one base algorithm, so that a difference in the table has its cause in
the lines that stand under its name.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from posttrain.config.params import read_knobs
from posttrain.experiments.plan import Variant, read_plan, variants
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.knobs import nearest

METHODS, REGIMES = Path("infra/ablation/methods.yaml"), Path("infra/ablation/regimes.yaml")
ALGORITHM = "train_policy.algorithm"


class _Given(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class Method(_Given):
    """`knobs` (`set` in the file) has keys below `train_policy` with their values. `is_oracle`: it
    sees what the world's expert does; `is_control`: it holds a method's claim against something
    simpler."""

    about: str
    is_oracle: bool = False
    is_control: bool = False
    knobs: dict[str, Any] = pydantic.Field(alias="set")


class Regime(_Given):
    """`knobs` (`set` in the file) has keys of `params.yaml` that differ there for all methods.
    `budget` is the part of the algorithm that is equal for all."""

    about: str
    knobs: dict[str, Any] = pydantic.Field(alias="set")
    budget: dict[str, Any]


class Laptop(_Given):
    """What `make ablation` runs."""

    regime: str
    methods: list[str]
    seeds: list[int]


class _Methods(_Given):
    baseline: str
    laptop: Laptop
    base: dict[str, Any]
    methods: dict[str, Method]


@dataclass(frozen=True, slots=True)
class Study:
    """The two files. `baseline` is the method that the others are compared with; `base` its
    algorithm without the budget."""

    baseline: str
    laptop: Laptop
    base: Mapping[str, Any]
    methods: Mapping[str, Method]
    regimes: Mapping[str, Regime]


@dataclass(frozen=True, slots=True)
class Arm:
    """A method in a regime from a seed, and the experiment that it is."""

    regime: str
    method: str
    seed: int
    variant: Variant


def read_study(root: Path) -> Study:
    """Raises ConfigurationError that names the file and what is wrong in it."""
    methods = _read(root, METHODS, _Methods)
    regimes = _read(root, REGIMES, pydantic.RootModel[dict[str, Regime]])
    study = Study(methods.baseline, methods.laptop, methods.base, methods.methods, regimes.root)
    _refuse_unknown(study, study.laptop.regime, [study.baseline, *study.laptop.methods])
    return study


def overrides(study: Study, regime: str, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Of each method, as a plan of experiments has them: `name` (`hard-grpo`) and what to `set`.
    Raises ConfigurationError for a name that there is none of, a key that the base has not, and a
    method that sets a part of the budget."""
    _refuse_unknown(study, regime, methods)
    return [
        {"name": f"{regime}-{name}", "set": _knobs(study, study.regimes[regime], name, study.methods[name])}
        for name in dict.fromkeys(methods)
    ]


def arms(study: Study, regime: str, methods: Sequence[str], seeds: Sequence[int], params: str) -> list[Arm]:
    """Seed by seed, so that all methods of one are comparable early. `params` is the text of
    `params.yaml`. Raises ConfigurationError for what `overrides` refuses, for knobs that the
    algorithm refuses, and where no seed is given."""
    if not seeds:
        raise ConfigurationError("no seed is given: methods are compared over training seeds; name some, as 1-5")
    variants(read_plan(None, overrides(study, regime, methods), seeds[:1]), params)
    return [one for seed in dict.fromkeys(seeds) for one in arms_of_seed(study, regime, methods, seed)]


def arms_of_seed(study: Study, regime: str, methods: Sequence[str], seed: int) -> list[Arm]:
    """Raises ConfigurationError for what `overrides` refuses; the algorithm is not asked."""
    names = list(dict.fromkeys(methods))
    found = overrides(study, regime, names)
    return [
        Arm(regime, method, seed, Variant(f"{one['name']}-seed{seed}", {**one["set"], "seed": seed}))
        for method, one in zip(names, found, strict=True)
    ]


def parse_methods(study: Study, text: str) -> list[str]:
    """`grpo,ngrpo`, or `all` of them."""
    return list(study.methods) if text == "all" else [name.strip() for name in text.split(",")]


def parse_seeds(text: str) -> list[int]:
    """`1-3,7` is 1, 2, 3, 7. Raises ConfigurationError."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ConfigurationError(f"{text!r} are no seeds: write them as 1,2,3 or 1-3")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def _knobs(study: Study, regime: Regime, name: str, method: Method) -> dict[str, Any]:
    """The regime's keys, then those of `train_policy` that make the method."""
    tree: dict[str, Any] = {"algorithm": copy.deepcopy({**study.base, **regime.budget})}
    for key, value in method.knobs.items():
        *path, last = key.split(".")
        if path[:1] == ["algorithm"] and (part := [*path, last][1]) in regime.budget:
            raise ConfigurationError(
                f"{METHODS}: {name} sets {key}, and {part} is the budget's, equal for all methods; "
                f"change it in {REGIMES} for all"
            )
        section = _section(tree, path, key, name)
        if path and last not in section:
            raise ConfigurationError(f"{METHODS}: {name} sets {key}, and there is no such key in `base`")
        section[last] = copy.deepcopy(value)
    return {**regime.knobs, **{f"train_policy.{key}": value for key, value in tree.items()}}


def _section(tree: dict[str, Any], path: Sequence[str], key: str, name: str) -> dict[str, Any]:
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None  # type: ignore[assignment]
    if not isinstance(tree, dict):
        raise ConfigurationError(f"{METHODS}: {name} sets {key}, and `base` has no section {'.'.join(path)}")
    return tree


def _refuse_unknown(study: Study, regime: str, methods: Sequence[str]) -> None:
    if regime not in study.regimes:
        raise ConfigurationError(
            f"{REGIMES} has no regime {regime!r}; there are {', '.join(study.regimes)}.{nearest(regime, study.regimes)}"
        )
    if not methods:
        raise ConfigurationError(f"no method is given; {METHODS} has {', '.join(study.methods)}")
    for name in methods:
        if name not in study.methods:
            raise ConfigurationError(
                f"{METHODS} has no method {name!r}; there are {', '.join(study.methods)}.{nearest(name, study.methods)}"
            )


_File = TypeVar("_File", bound=pydantic.BaseModel)


def _read(root: Path, file: Path, kind: type[_File]) -> _File:
    try:
        return kind.model_validate(read_knobs((root / file).read_bytes(), source=str(file)))
    except (OSError, pydantic.ValidationError) as error:
        raise ConfigurationError(f"{file} cannot be read, so nothing was run: {error}") from error
