"""Declares console commands: a function, called with its arguments by name and explained by its
docstring."""

import argparse
from collections.abc import Callable
from typing import Any, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(commands: Commands, name: str, command: Callable[..., None], **options: Any) -> argparse.ArgumentParser:
    """A parser that leaves the function in `command`."""
    parser = commands.add_parser(name, help=command.__doc__, description=command.__doc__, **options)
    parser.set_defaults(command=command)
    return parser
