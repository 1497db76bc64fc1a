"""Fresh instances of the executable classes of one entry: they answer calls, and hold the state.

The package keeps instances as globals of a module by model and entry, and lets all share what its
long contexts add; here a set of instances is copied as one when it is made, so that nothing of it
is reached from another episode. A call also leaves the precision of `decimal` and `mpmath` as it
was, which the package's square root and logarithm set for the whole process.
"""

import contextlib
import copy
import decimal
import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from posttrain.worlds.bfcl import package
from posttrain.worlds.bfcl.entries import Call, Entry

# The two answers in which the package writes a set, so in another order in each process.
_UNORDERED = re.compile(r"(?<=^Invalid fields for update: ).*$|(?<=Must be one of \{).*(?=\}$)")
_MAX_DIGITS = 10_000  # of a number that a function is asked for; Python writes none of more than 4,300


class Instances:
    """One instance of each class of an entry."""

    def __init__(self, instances: Mapping[str, Any]) -> None:
        self.by_class = instances
        self._methods: dict[str, Callable[..., Any]] = {}
        for instance in instances.values():  # of two methods of one name the later class's, as in the package
            found = inspect.getmembers(instance, inspect.ismethod)
            self._methods |= {name: method for name, method in found if not name.startswith("_")}

    def call(self, call: Call) -> Any:
        """The function's result: live state in part, to be written out before the next call. Raises
        whatever it raises, and ValueError for a number that would take too long to compute."""
        if call.name not in self._methods:
            raise NameError(f"name '{call.name}' is not defined")
        _check_digits(call)
        mpmath = package.mpmath()
        with decimal.localcontext(), mpmath.workdps(mpmath.mp.dps):
            # a class may keep and change what it is given
            answer = self._methods[call.name](*call.values, **copy.deepcopy(dict(call.arguments)))
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            error = _UNORDERED.sub(lambda found: ", ".join(sorted(found[0].split(", "))), answer["error"])
            return answer | {"error": error}
        return answer

    def answer(self, call: Call) -> str:
        """The text that the package compares: a mapping as JSON, else as Python writes it."""
        try:
            result = self.call(call)
        except Exception as error:  # the package's boundary: whatever a class raises is an answer
            return f"Error during execution: {error}"
        with contextlib.suppress(TypeError, ValueError):
            if isinstance(result, dict):
                return json.dumps(result)
        return str(result)

    def state(self, class_name: str) -> Mapping[str, Any]:
        """The attributes of an instance that the package compares."""
        return {name: value for name, value in vars(self.by_class[class_name]).items() if not name.startswith("_")}


def make_instances(entry: Entry, count: int = 1) -> list[Instances]:
    """`count` sets of instances. The sets of one call share with each other, and with nothing else,
    what the package shares between all: the cards and bookings that a long context adds."""
    return [Instances(instances) for instances in copy.deepcopy([_loaded(entry) for _ in range(count)])]


def _loaded(entry: Entry) -> dict[str, Any]:
    instances = {name: package.class_named(name)() for name in entry.classes}
    stateless = package.module("constants.executable_backend_config").STATELESS_CLASSES
    for name, instance in instances.items():
        if name not in stateless:
            scenario = copy.deepcopy(entry.raw["initial_config"].get(name, {}))
            instance._load_scenario(scenario, long_context=entry.set_name == "long_context")
    return instances


def _check_digits(call: Call) -> None:
    given = call.arguments
    asked = [given.get(name) for name in ("precision", "decimal_places")]
    if call.name == "power" and isinstance(base := given.get("base"), int):
        exponent = given.get("exponent")
        asked.append(exponent * base.bit_length() // 3 if isinstance(exponent, int) and abs(base) > 1 else 0)
    if any(isinstance(number, int | float) and abs(number) > _MAX_DIGITS for number in asked):
        raise ValueError(f"a number of more than {_MAX_DIGITS} digits is not computed")
