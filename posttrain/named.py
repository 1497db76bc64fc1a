"""What does `module:function` in a configuration stand for? Anything that can be imported, so that a user's own code needs no edit of the library."""

import importlib
from collections.abc import Callable
from typing import Any

from posttrain.exits import ConfigurationError


def load_named(name: str, *, knob: str) -> Callable[..., Any]:
    """The function, or class, called `name`; `knob` begins the message of the ConfigurationError that says why it cannot be had."""
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise ConfigurationError(f"{knob} {name!r}; a function of your own is written module:function")
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
    except (ImportError, SyntaxError) as error:
        raise ConfigurationError(
            f"{knob} {name!r}, but {module_name} cannot be imported ({error}); the module must be importable from the repository's root"
        ) from error
    if not callable(function):
        found = "is not there" if function is None else f"is a {type(function).__name__}"
        raise ConfigurationError(f"{knob} {name!r}, but {function_name!r} {found}; it must be a function in {module_name}")
    loaded: Callable[..., Any] = function
    return loaded
