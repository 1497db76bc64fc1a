"""What the owner of an endpoint's account allows, and what was used of it: requests at once and a
minute, money.

Of the environment, by a prefix (`POSTTRAIN_OPENAI`, or `POSTTRAIN_USER` for a simulated user):
`…_CONCURRENT` (16 requests at once), `…_RPM` (requests a minute, no limit), `…_PRICES` (`in,out`
for a million tokens) with `…_MAX_COST`.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from posttrain.exits import ConfigurationError, Interrupted


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
        """Until the next request may be sent. Raises Interrupted where the money is spent."""
        if self.cost >= self.max_cost:
            raise Interrupted(
                f"the endpoint has cost {self.cost:.2f} and {self.name}_MAX_COST is {self.max_cost:g}; "
                "what was played is kept: raise it and run again to go on from there"
            )
        now_s = time.monotonic()
        at_s, self._next_s = max(now_s, self._next_s), max(now_s, self._next_s) + 60 / self.requests_per_minute
        await asyncio.sleep(at_s - now_s)

    def pay(self, num_read: int, num_written: int) -> None:
        """Count the tokens of an answer."""
        self.cost += (num_read * self.prices[0] + num_written * self.prices[1]) / 1e6


def account_of(name: str, environment: Mapping[str, str] = os.environ) -> Account:
    """Raises ConfigurationError where a variable is no number, or a cost is limited and no price
    named."""
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
