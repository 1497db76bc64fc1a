"""Runs the workers of one further node of a stage: waits for the call of the stage's runner on the
first node, starts accelerate here, and tells the runner how each worker ends.

A follower has no say: it ends with the runner, and the job's end is the runner's. Nothing outlives
it, because its workers die with it, and it ends when its connection does.
`python -m posttrain.provenance.follower` in the folder of the stage starts one by hand.
"""

import contextlib
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from posttrain.provenance.environment import TEMPORARY
from posttrain.provenance.launcher import received_signals, started_agent
from posttrain.provenance.nodes import Link, answer_call
from posttrain.runtime.exits import exit_codes
from posttrain.runtime.redaction import redact
from posttrain.runtime.worker import mark_failure_elsewhere

CALL_LIMIT_S = 1800.0  # the runner hashes the inputs first
_POLL_S = 0.1


def follow(*, limit_s: float = CALL_LIMIT_S) -> int:
    """Follow the runner until it ends; gives 0, because how it ends is the runner's to say. Raises
    Interrupted where it has not called in `limit_s`."""
    with received_signals() as received, _temporary_folder() as temporary:
        call, link, address, node = answer_call(lambda: bool(received), limit_s=limit_s)
        _say(f"node {node + 1} of {call.num_nodes}: starts {call.num_processes} processes")
        os.environ["TMPDIR"] = temporary
        folder = Path(temporary) / "workers"
        folder.mkdir()
        told, sent, asked = set[int](), set[int](), list[int]()
        with (
            contextlib.closing(link),
            started_agent(call, folder, node=node, address=address, interface=link.interface) as agent,
        ):
            is_over = False
            while not link.is_closed:
                asked += _orders(link, folder)
                agent.pass_on(asked)
                for number in set(received) - sent:  # this node is to go: the runner stops all
                    link.send(signal=number)
                    sent.add(number)
                is_running = agent.is_running
                for rank, end in agent.ends().items():
                    if rank not in told:
                        link.send(rank=rank, end=None if end is None else asdict(end))
                        told.add(rank)
                if not is_running and not is_over:
                    link.send(over=agent.exit_code)
                    is_over = True
                time.sleep(_POLL_S)
        _say(f"node {node + 1} of {call.num_nodes}: the first node has ended, and so do the processes here")
    return 0


def _orders(link: Link, folder: Path) -> list[int]:
    """Stop signals for the workers; a failure on another node is noted in their folder."""
    numbers = []
    for message in link.read():
        match message:
            case {"signal": int(number)}:
                numbers.append(number)
            case {"failed": True}:
                mark_failure_elsewhere(folder)
    return numbers


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True)


def _say(line: str) -> None:
    print(f"[follower] {redact(line)}", file=sys.stderr, flush=True)


def main() -> None:
    with exit_codes():
        sys.exit(follow())


if __name__ == "__main__":
    main()
