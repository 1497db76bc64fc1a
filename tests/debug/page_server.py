"""A server of the debugger's page over a trace store of the lock world: what the tests of the page
share."""

import contextlib
import http.client
import json
import threading
from dataclasses import replace

from posttrain.debug.page import TEMPLATE, DebugPage
from posttrain.debug.player import Player
from posttrain.debug.server import DebugServer
from posttrain.debug.session import Session
from posttrain.report.html import rendered
from posttrain.rollout.episode import Reply
from posttrain.rollout.episodes import run_episodes
from posttrain.traces.store import open_to_read
from posttrain.traces.values import TracedEpisode
from posttrain.types import Outcome
from tests.loopback import serving
from tests.rollout.lock_world import LIMITS, LockDomain, arguments_of, call, lock_task, say
from tests.traces.episodes import record
from tests.waiting import wait_until

HOSTILE = "<script>document.title='pwned'</script>\x1b[2J\u202e" + "x" * 1_000_000


class Guesser:
    """Tries 1, then 2, and says done; at once where the lock is open. Waits where it is told to."""

    may_go_on = threading.Event()
    may_go_on.set()

    async def reply(self, episode):
        self.may_go_on.wait(60)
        results = [one.content for one in episode.messages if one.role == "tool"]
        if len(results) == 2 or any('"open":true' in one for one in results):
            return Reply(say("done"))
        return Reply(call("try_code", arguments_of("12"[len(results)])))

    def release(self, episode): ...


PLAYER = Player("guesser", LockDomain(), LIMITS, lambda _: Guesser())


def session_of(stored):
    return Session(stored.traced.task, stored.traced.trajectory, PLAYER)


def guessed(task, *, step=None, reward=0.1, first="", **changes):
    """An episode of the guesser's; `first` stands in place of its first message's text."""
    [episode] = run_episodes(Guesser(), [task], domain=LockDomain(), limits=LIMITS, seeds=[3])
    messages = list(episode.messages)
    messages[2] = replace(messages[2], content=first)
    episode = replace(episode, messages=tuple(messages), reward=reward, **changes)
    return TracedEpisode(episode, task, is_success=episode.is_success, step=step, advantage=reward)


def make_store(path):
    """Episodes 1 and 2 are a group of step 1, 3 and 4 one of step 2, 5 is another stage's; 4 is
    hostile."""
    opened = {"outcome": Outcome(True, True)}
    one, other = lock_task("a"), lock_task("b")
    group = [guessed(one, step=1), guessed(one, step=1, reward=0.9, first="well", **opened)]
    record(path, "train_policy", [*group, guessed(other, step=2), guessed(other, step=2, first=HOSTILE)], uid="1")
    record(path, "evaluate@sft", [guessed(other, reward=0.5)], uid="2")


@contextlib.contextmanager
def served(folder):
    """The server, its store's episodes and its edits in the folder."""
    make_store(folder / "traces.db")

    def open_store():
        return contextlib.closing(open_to_read(folder / "traces.db"))

    page = DebugPage(open_store, session_of, who="me", code="abc", edits=folder / "edits.parquet")
    with serving(DebugServer(page, rendered(TEMPLATE, title="Debugger"))) as server:
        yield server


def asked(server, path, body=b"{}", *, method="POST", **headers):
    """Status, headers and bytes; a header is left out where it is None."""
    own = {"Authorization": f"Bearer {server.key}", "Host": f"127.0.0.1:{server.port}", **headers}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, body, {name: value for name, value in own.items() if value is not None})
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


def ask(server, command, **given):
    """Status and answer of a command, at the end of what it plays."""
    status, _, text = asked(server, f"/{command}", json.dumps(given).encode())
    answer = json.loads(text)
    if status == 202:

        def ended():
            again, _, text = asked(server, "/state")
            return again != 202 and (again, json.loads(text))

        return wait_until(ended)
    return status, answer


def opened(server, episode=1, **given):
    status, answer = ask(server, "open", episode=episode, **given)
    assert status == 200, answer
    return answer["session"]
