"""Imports the function or class that a configuration names as `module:function`."""

import difflib
import importlib
from collections.abc import Callable
from typing import Any

from posttrain.runtime.exits import ConfigurationError


def load_named(name: str, *, knob: str) -> Callable[..., Any]:
    """The function or class called `name`; `knob` begins the message of the ConfigurationError."""
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise ConfigurationError(f"{knob} {name!r}; a function of your own is written module:function")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # somebody's own code: it may end in any way
        what = str(error) if isinstance(error, ImportError | SyntaxError) else f"{type(error).__name__}: {error}"
        why = f"{module_name} cannot be imported ({what}); the module must be importable from the repository's root"
        raise ConfigurationError(f"{knob} {name!r}, but {why}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        near = difflib.get_close_matches(function_name, vars(module), n=1)
        missing = f"is not there (did you mean {near[0]!r}?)" if near else "is not there"
        found = missing if function is None else f"is a {type(function).__name__}"
        raise ConfigurationError(
            f"{knob} {name!r}, but {function_name!r} {found}; it must be a function in {module_name}"
        )
    loaded: Callable[..., Any] = function
    return loaded
