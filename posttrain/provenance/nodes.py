"""Connects the nodes of a stage: the runner on the first node calls, a follower on each of the
others starts the workers there (`follower.py`).

The runner writes its addresses, a port and a token into a file (`MEETING`) on the disk that the
nodes share, for its user alone, and every follower keeps one TCP connection to it, in lines of
JSON. A node is gone when its connection closes, or answers nothing for `SILENCE_S`: locks and new
files of a network disk are seen too late for that. Addresses are IPv4.
"""

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from posttrain.dispatch.backend import NO_OTHERS
from posttrain.runtime.exits import Interrupted
from posttrain.runtime.state import STATE_DIR, private
from posttrain.runtime.worker import WorkerEnd, mark_failure_elsewhere

NODES = "POSTTRAIN_NODES"  # how many
MEETING = STATE_DIR / "nodes.json"
JOIN_S = 600.0  # a pod may wait for its node and its image
HELLO_S = 5.0
SILENCE_S = 30.0  # a node without power closes no connection
REPORT_S = 5.0  # for the other nodes to say how their processes ended, once one has failed
GRACE_S = 30.0  # from a failure to the end of all, as accelerate has it on one node
FINISH_S = 120.0  # between the first node whose processes ended well and the last
_POLL_S = 0.1
_MAX_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Call:
    """Content of `MEETING`: where the runner listens, and what a follower starts. `num_processes`
    is that of each node; `rendezvous_port` is for accelerate's agents, at the runner's address."""

    folder: str
    config: str
    num_nodes: int
    num_processes: int
    program: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    rendezvous_port: int
    addresses: tuple[str, ...] = ()
    port: int = 0
    token: str = field(default="", repr=False)


class Link:
    """One connection between runner and follower. Messages are small, so none is sent in parts."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(HELLO_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", SILENCE_S / 3), ("TCP_KEEPINTVL", SILENCE_S / 6), ("TCP_KEEPCNT", 4)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), int(value))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1000))
        self._connection, self._rest, self.is_closed = connection, b"", False

    @property
    def interface(self) -> str:
        """Name of this node's network interface that the connection goes through, empty where it
        has none."""
        own = self._connection.getsockname()[0]
        found = psutil.net_if_addrs().items()
        return next((name for name, addresses in found if any(one.address == own for one in addresses)), "")

    def send(self, **message: Any) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.is_closed = True

    def read(self, wait_s: float = 0.0) -> list[dict[str, Any]]:
        """What has come, in order; waits for the first while it is not there."""
        try:
            if select.select([self._connection], [], [], wait_s)[0]:
                came = self._connection.recv(_MAX_LINE)
                self._rest += came
                self.is_closed |= not came or len(self._rest) > _MAX_LINE
            *lines, self._rest = self._rest.split(b"\n")
            return [message for line in lines if isinstance(message := json.loads(line), dict)]
        except (OSError, ValueError):
            self.is_closed = True
            return []

    def close(self) -> None:
        self.is_closed = True
        self._connection.close()


@dataclass(slots=True)
class Node:
    """One of the other nodes, as the runner sees it. `exit_code` is that of its accelerate, None
    while it runs."""

    number: int
    host: str
    link: Link
    exit_code: int | None = None

    def __str__(self) -> str:
        return f"node {self.number + 1} ({self.host})"


@dataclass(slots=True)
class OtherNodes:
    """All nodes but the runner's. `ends` are those of their workers, None for one that was killed;
    `lost` the nodes whose connection closed before they had said how theirs ended."""

    folder: Path
    nodes: tuple[Node, ...] = ()
    ends: dict[int, WorkerEnd | None] = field(default_factory=dict)
    lost: list[Node] = field(default_factory=list)
    _deadline_s: float | None = None
    _passed_on: set[int] = field(default_factory=set)

    @property
    def is_overdue(self) -> bool:
        """True where a worker somewhere has failed, and others still run after their time."""
        return self._deadline_s is not None and time.monotonic() > self._deadline_s

    @property
    def interface(self) -> str:
        """This node's network interface to the others, empty where there are none."""
        return self.nodes[0].link.interface if self.nodes else ""

    @property
    def are_over(self) -> bool:
        return all(node.exit_code is not None or node in self.lost for node in self.nodes)

    def exchange(self, received: list[int], own: Mapping[int, WorkerEnd | None]) -> None:
        """Pass stop signals on, also one that another node received, and each failure to the nodes
        that have not seen it. `own` are the ends of this node's workers."""
        for number in set(received) - self._passed_on:
            self._tell(signal=number)
            self._passed_on.add(number)
        for node in self.nodes:
            for message in node.link.read():
                self._take(node, message, received)
            if node.link.is_closed and node.exit_code is None and node not in self.lost:
                self.lost.append(node)
        self._note_failure(own)

    def finish(self, received: list[int], own: Mapping[int, WorkerEnd | None], *, is_good: bool) -> None:
        """Wait until the other nodes have said how their workers ended, at most as long as a good
        or a bad end takes; after a good one those that have not count as lost."""
        deadline_s = time.monotonic() + (FINISH_S if is_good else REPORT_S)
        while not self.are_over and time.monotonic() < deadline_s and not self.is_overdue:
            self.exchange(received, own)
            time.sleep(_POLL_S)
        if is_good:
            self.lost += [node for node in self.nodes if node.exit_code is None and node not in self.lost]

    def close(self) -> None:
        """Followers end with their connection."""
        for node in self.nodes:
            node.link.close()

    def _take(self, node: Node, message: Mapping[str, Any], received: list[int]) -> None:
        match message:
            case {"rank": int(rank), "end": end}:
                self.ends[rank] = None if end is None else WorkerEnd(**end)
            case {"over": int(code)}:
                node.exit_code = code
            case {"signal": int(number)}:
                received.append(number)

    def _note_failure(self, own: Mapping[int, WorkerEnd | None]) -> None:
        ends = {**self.ends, **own}
        is_killed = bool(self.lost) or None in ends.values()
        is_failed = is_killed or any(end is not None and end.code for end in ends.values())
        is_failed |= any(node.exit_code for node in self.nodes)
        if not self.nodes or not is_failed or self._deadline_s is not None:
            return
        self._deadline_s = time.monotonic() + (REPORT_S if is_killed else GRACE_S)
        if not any(end is None or end.code for end in own.values()):
            mark_failure_elsewhere(self.folder)
        self._tell(failed=True)

    def _tell(self, **message: Any) -> None:
        for node in self.nodes:
            node.link.send(**message)


@contextlib.contextmanager
def call_nodes(call: Call, folder: Path, received: list[int]) -> Iterator[OtherNodes]:
    """The other nodes, once a follower on each has answered; nothing is called where there is one
    node. `folder` takes the files of this node's workers. Raises Interrupted where a follower is
    missing after `JOIN_S` or has gone, or a stop signal is `received`."""
    if call.num_nodes == 1:
        yield OtherNodes(folder)
        return
    with socket.create_server(("", 0), backlog=call.num_nodes) as listener:
        place = {"addresses": _own_addresses(), "port": listener.getsockname()[1], "token": secrets.token_hex(16)}
        call, others = replace(call, **place), OtherNodes(folder)
        _write(call)
        try:
            _welcome(call, listener, others, received)
            listener.close()
            yield others
        finally:
            MEETING.unlink(missing_ok=True)
            others.close()


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


def answer_call(is_stopped: Callable[[], bool], *, limit_s: float) -> tuple[Call, Link, str, int]:
    """What the runner has called for, the connection to it, its address, and this node's number.
    Raises Interrupted where no runner has called in that time."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and not is_stopped():
        if (call := _read()) is not None and (reached := _reach(call)) is not None:
            return call, *reached
        time.sleep(_POLL_S)
    raise Interrupted(
        f"the stage on the first node has not called this one ({socket.gethostname()}) "
        + ("before it was asked to stop" if is_stopped() else f"in {limit_s:g} s: its log says what it did instead")
    )


def _reach(call: Call) -> tuple[Link, str, int] | None:
    """None where no address leads to the runner, or it has all its nodes."""
    for address in call.addresses:
        with contextlib.suppress(OSError):
            link = Link(socket.create_connection((address, call.port), timeout=HELLO_S))
            link.send(token=call.token, host=socket.gethostname())
            for message in link.read(HELLO_S):
                return link, address, int(message["node"])
            link.close()
    return None


def _welcome(call: Call, listener: socket.socket, others: OtherNodes, received: list[int]) -> None:
    listener.settimeout(_POLL_S)
    deadline_s = time.monotonic() + JOIN_S
    while len(others.nodes) + 1 < call.num_nodes:
        with contextlib.suppress(TimeoutError):
            link = Link(listener.accept()[0])
            hello = next(iter(link.read(HELLO_S)), {})
            if hmac.compare_digest(str(hello.get("token")).encode(), call.token.encode()):
                node = Node(len(others.nodes) + 1, str(hello.get("host")), link)
                link.send(node=node.number)
                others.nodes += (node,)
            else:
                link.close()
        others.exchange(received, {})
        missing = f"{call.num_nodes - 1 - len(others.nodes)} of {call.num_nodes} nodes"
        if received:
            raise Interrupted(f"asked to stop while it waited for {missing}: what is done is kept, run again to go on")
        if others.lost or Path(NO_OTHERS).exists():
            gone = f"{others.lost[0]} has gone" if others.lost else f"{missing} cannot be started"
            raise Interrupted(f"{gone}; what the backend says of it stands above. Run again")
        if time.monotonic() > deadline_s:
            raise Interrupted(f"{missing} have not answered in {JOIN_S:g} s: has the backend started them? Run again")


def _own_addresses() -> tuple[str, ...]:
    """Addresses of this node for others, best first: its name, every IPv4 address, this machine
    itself for nodes that are one."""
    found = [one.address for name in psutil.net_if_addrs().values() for one in name if one.family == socket.AF_INET]
    outer = [address for address in found if not address.startswith("127.")]
    return (socket.gethostname(), *outer, "127.0.0.1")


def _write(call: Call) -> None:
    partial = MEETING.with_name(f".{MEETING.name}.{os.getpid()}")
    with open(partial, "w", encoding="utf-8", opener=private) as file:
        json.dump(asdict(call), file)
    partial.replace(MEETING)


def _read() -> Call | None:
    """None while there is none."""
    os.listdir(STATE_DIR if STATE_DIR.is_dir() else ".")  # a network disk looks again
    try:
        content = json.loads(MEETING.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    lists = {name: tuple(content[name]) for name in ("addresses", "program")}
    return Call(**{**content, **lists})
