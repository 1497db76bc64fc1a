"""Declares console commands: a function, called with its arguments by name and explained by its
docstring."""

import argparse
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, name: str, command: Callable[..., None], **options: Any) -> argparse.ArgumentParser:
    """Add a command whose parsed arguments have the function in `command`."""
    parser = commands.add_parser(name, description=command.__doc__, **options)
    parser.set_defaults(command=command)
    return parser


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
