"""The only access to the package `bfcl-eval`: its data, its classes and its constants.

It is imported here and when it is needed, because it is installed without its dependencies, which
pin other versions than ours; of those, what is used here needs `mpmath` alone.
"""

import importlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from posttrain.runtime.exits import ConfigurationError

CLASSES = (
    *("GorillaFileSystem", "MathAPI", "MessageAPI", "TicketAPI"),
    *("TradingBot", "TravelAPI", "TwitterAPI", "VehicleControlAPI"),
)
HOW_TO_INSTALL = "pip install 'mpmath>=1.3,<2' && pip install --no-deps bfcl-eval==2026.3.23"


def module(name: str) -> Any:
    """A module of the package. Raises ConfigurationError where it or mpmath is not installed."""
    return _imported(f"bfcl_eval.{name}")


def mpmath() -> Any:
    return _imported("mpmath")


@cache
def class_named(name: str) -> Any:
    path: str = module("constants.executable_backend_config").CLASS_FILE_PATH_MAPPING[name]
    return getattr(_imported(path), name)


def documents(class_name: str) -> list[dict[str, Any]]:
    """The package's descriptions of a class's functions, in its own form."""
    file_name = module("constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name]
    return list(_lines(_data() / "multi_turn_func_doc" / file_name))


def questions(set_name: str) -> list[dict[str, Any]]:
    return list(_lines(_data() / f"BFCL_v4_multi_turn_{set_name}.json"))


def answers(set_name: str) -> list[list[list[str]]]:
    """The gold calls of each entry of a set, in the order of `questions`, by turn."""
    lines = _lines(_data() / "possible_answer" / f"BFCL_v4_multi_turn_{set_name}.json")
    return [line["ground_truth"] for line in lines]


def max_steps() -> int:
    """Messages with calls in one turn of the user's, after more of which the package ends it."""
    number: int = module("constants.default_prompts").MAXIMUM_STEP_LIMIT
    return number


def _data() -> Path:
    return Path(module("constants.default_prompts").__file__).parents[1] / "data"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


@cache
def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"world.type is bfcl, and the module {error.name} is not installed; install it: {HOW_TO_INSTALL}"
        ) from error
