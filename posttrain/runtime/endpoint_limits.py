"""Limits of an API account (requests at once, requests a minute, cost), and the request parameters
that an endpoint refuses.

The environment sets them, by a prefix (`POSTTRAIN_OPENAI`, or `POSTTRAIN_USER` for a simulated
user): `…_CONCURRENT` (16 requests at once), `…_RPM` (requests a minute, no limit), `…_PRICES`
(`in,out` for a million tokens) with `…_MAX_COST`.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.runtime.exits import ConfigurationError, Interrupted
from posttrain.runtime.limits import reason

# the parameters of a chat completion that an endpoint may refuse, and what is sent instead
_INSTEAD = {"max_tokens": "max_completion_tokens", "temperature": "", "seed": ""}


@dataclass(slots=True)
class Account:
    """`prices` are for a million tokens, read and written; `name` is the variables' prefix."""

    name: str
    concurrent: int = 16
    requests_per_minute: float = float("inf")
    prices: tuple[float, float] = (0.0, 0.0)
    max_cost: float = float("inf")
    cost: float = 0.0
    _next_s: float = field(default=0.0)

    async def wait(self) -> None:
        """Wait until the next request may be sent. Raises Interrupted where the money is spent."""
        if self.cost >= self.max_cost:
            raise Interrupted(
                f"the endpoint has cost {self.cost:.2f} and {self.name}_MAX_COST is {self.max_cost:g}; "
                "what was played is kept: raise it and run again to go on from there"
            )
        now_s = time.monotonic()
        at_s, self._next_s = max(now_s, self._next_s), max(now_s, self._next_s) + 60 / self.requests_per_minute
        await asyncio.sleep(at_s - now_s)

    def pay(self, num_read: float, num_written: float) -> None:
        """Count the tokens of an answer."""
        self.cost += (num_read * self.prices[0] + num_written * self.prices[1]) / 1e6


class ChatParameters:
    """The parameters of a chat completion that one endpoint refused, which are then left out or
    renamed: reasoning models take `max_completion_tokens` for `max_tokens` and only a temperature
    of their own, some servers take no `seed`.

    Nobody lists which endpoint takes what, so its own refusal is read. `file` keeps what was
    learnt, because a run that goes on from kept plays may never ask again.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file, self._refused = file, list[str]()
        if file is not None:
            with suppress(OSError, ValueError):
                self._refused = [name for name in json.loads(file.read_text()) if name in _INSTEAD]

    @property
    def changed(self) -> dict[str, str]:
        """Treatment of each refused parameter, for the record of the measurement."""
        return {name: f"sent as {_INSTEAD[name]}" if _INSTEAD[name] else "not sent" for name in self._refused}

    def taken(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request as the endpoint takes it."""
        names = {name: _INSTEAD[name] if name in self._refused else name for name in request}
        return {names[name]: value for name, value in request.items() if names[name]}

    def learn(self, sent: Mapping[str, Any], refusal: str) -> bool:
        """True where the refusal of the request `sent` names a parameter that can be left out;
        `taken` then leaves it out. Of several names the first counts: later ones are often
        suggestions."""
        found = re.search(rf"(?<![\w.])({'|'.join(_INSTEAD)})(?!\w)", refusal[:1000])
        if found is None or found[1] not in sent:
            return False
        if (name := found[1]) not in self._refused:
            self._refused.append(name)
            print(
                f"posttrain: the endpoint refuses {name}, which is {self.changed[name]} from now on"
                f"{'' if _INSTEAD[name] else ', so its own default is measured'} ({reason(refusal)})",
                file=sys.stderr,
            )
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.write_text(json.dumps(self._refused))
        return True


def account_of(name: str, environment: Mapping[str, str] = os.environ) -> Account:
    """Raises ConfigurationError for a variable that is no number, or a limit without prices."""
    account = Account(name)
    try:
        account.concurrent = int(environment.get(f"{name}_CONCURRENT", account.concurrent))
        account.requests_per_minute = float(environment.get(f"{name}_RPM", "inf"))
        account.max_cost = float(environment.get(f"{name}_MAX_COST", "inf"))
        read, written = map(float, environment.get(f"{name}_PRICES", "0,0").split(","))
    except ValueError as error:
        raise ConfigurationError(f"a {name}_… variable is not what it should be: {error}") from error
    if account.concurrent < 1 or not account.requests_per_minute > 0:
        raise ConfigurationError(f"{name}_CONCURRENT and {name}_RPM must be above 0: nothing could ever be asked")
    if account.max_cost < float("inf") and read == written == 0:
        raise ConfigurationError(
            f"{name}_MAX_COST is set and {name}_PRICES is not: nothing would ever cost anything; set both"
        )
    if not (account.max_cost >= 0 and read >= 0 and written >= 0):  # nor a number that is none
        raise ConfigurationError(f"{name}_MAX_COST and {name}_PRICES are amounts of money, 0 or above")
    account.prices = (read, written)
    return account
