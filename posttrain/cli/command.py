"""Declares a console command: a function, called with its arguments by name and explained by its
docstring; and the arguments that name a world and its knobs."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from posttrain.runtime.exits import ConfigurationError

if TYPE_CHECKING:
    from posttrain.api import World

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, name: str, command: Callable[..., None], **options: Any) -> argparse.ArgumentParser:
    """Add a command whose parsed arguments have the function in `command`."""
    parser = commands.add_parser(name, description=command.__doc__, **options)
    parser.set_defaults(command=command)
    return parser


def add_world_arguments(command: argparse.ArgumentParser, *, is_required: bool = False) -> None:
    """Whatever `load_asked_world` takes."""
    command.add_argument("--world", default="", required=is_required, help="a world's type, or your own as module:name")
    command.add_argument("--quick", action="store_true", help="with the small sizes of experiments/demo.yaml")
    command.add_argument("--params", type=Path, help="whose knobs count; params.yaml by default")
    add_setting(command)


def add_setting(command: argparse.ArgumentParser) -> None:
    """Whatever `settings_of` takes."""
    command.add_argument(
        "--set", dest="knobs", action="append", default=[], metavar="KEY=VALUE", help="a knob: train_sft.max_steps=50"
    )


def settings_of(knobs: Sequence[str]) -> dict[str, Any]:
    """Values by dotted key. Raises ConfigurationError where one is no KEY=VALUE."""
    from posttrain.config.params import read_knobs

    named: dict[str, Any] = {}
    for one in knobs:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"--set {one!r} sets nothing; write KEY=VALUE, such as train_sft.max_steps=50")
        named[key] = read_knobs(f"value: {value}", source=f"--set {one}")["value"]
    return named


def load_asked_world(world: str, quick: bool, params: Path | None, knobs: Sequence[str]) -> "World":
    """Raises ConfigurationError for no KEY=VALUE, an unknown world or knob."""
    named = settings_of(knobs)
    from posttrain.api import load_world
    from posttrain.config.named_world import PARAMS

    return load_world(world, named, quick=quick, params=params or PARAMS)


def add_commands(commands: Commands, name: str, about: str) -> Commands:
    """Add a command that has commands of its own."""
    return commands.add_parser(name, description=about).add_subparsers(metavar="COMMAND", required=True)


def grouped_help(commands: Commands, groups: Mapping[str, str]) -> str:
    """The commands by group, a line for each with the beginning of its description."""
    lines = []
    for title, names in groups.items():
        lines += ["", f"{title}:"]
        for name in names.split():
            description = " ".join(str(commands.choices[name].description).split())
            lines.append(f"  {name:<18}{re.split('[.:](?: |$)', description)[0]}")
    return "\n".join(lines[1:])
