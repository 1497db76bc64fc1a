"""Chooses the server for an episode's next message: the one that wrote its last, which has its
context cached, else the one with the fewest requests in flight. It neither sends nor waits."""

from collections import Counter
from collections.abc import Iterable


class Router:
    """The servers by URL. A server that is down keeps no episode: each is routed anew at its next
    message."""

    def __init__(self) -> None:
        self._up: dict[str, None] = {}  # in the order in which they came up: ties go to the first
        self._in_flight = Counter[str]()
        self._server_of: dict[str, str] = {}

    @property
    def up(self) -> tuple[str, ...]:
        return tuple(self._up)

    def set_up(self, url: str) -> None:
        """Route to this server: it answers and has the current weights."""
        self._up[url] = None

    def set_down(self, url: str) -> None:
        """Route no more to this server; an unknown one is no error."""
        self._up.pop(url, None)

    def choose(self, episode_id: str, *, avoid: Iterable[str] = ()) -> str | None:
        """The server for the episode's next message, which then counts as in flight; None where
        none is up. Those to `avoid` are taken only where all others are down."""
        avoided = set(avoid)
        url = self._server_of.get(episode_id)
        if url is None or url not in self._up or url in avoided:
            candidates = [one for one in self._up if one not in avoided] or list(self._up)
            url = min(candidates, key=lambda one: self._in_flight[one], default=None)
        if url is not None:
            self._server_of[episode_id] = url
            self._in_flight[url] += 1
        return url

    def finish(self, url: str) -> None:
        """Count a request that `choose` gave out as over."""
        self._in_flight[url] -= 1

    def release(self, episode_id: str) -> None:
        """Drop an episode that is over; an unknown one is no error."""
        self._server_of.pop(episode_id, None)
