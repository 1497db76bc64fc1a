"""The first node of a stage calls the others over real connections; with real processes:
tests/real/test_processes.py."""

import dataclasses
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from posttrain.dispatch.backend import NO_OTHERS
from posttrain.provenance import nodes
from posttrain.provenance.nodes import MEETING, Call, OtherNodes, answer_call, call_nodes
from posttrain.runtime.exits import Interrupted
from posttrain.runtime.worker import WorkerEnd
from tests.waiting import wait_until

CALL = Call("/folder", "ddp.yaml", 2, 1, ("--module", "stages.train_sft"), {"POSTTRAIN_THREADS": "1"}, 4321)
GOOD, BAD = WorkerEnd(0, "", 1.0, 100.0), WorkerEnd(78, "a knob is wrong", 1.0, 100.0)


@pytest.fixture(autouse=True)
def _job_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".posttrain").mkdir()


@pytest.fixture
def pair(tmp_path):
    """The first node's side and the second's."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(answer_call, lambda: False, limit_s=30)
        with call_nodes(CALL, tmp_path, []) as others:
            yield others, answer.result()


def exchanged(others: OtherNodes, is_so, received=None, own=None):
    received = [] if received is None else received

    def look():
        others.exchange(received, own or {})
        return is_so()

    return wait_until(look)


def test_a_follower_gets_the_call_over_the_disk_and_its_number_over_the_network(pair):
    others, (call, link, address, number) = pair
    assert (call.program, call.environment, call.rendezvous_port) == (CALL.program, CALL.environment, 4321)
    assert (number, str(others.nodes[0])) == (1, f"node 2 ({socket.gethostname()})")
    assert address in call.addresses
    assert others.interface == link.interface != ""
    assert MEETING.stat().st_mode & 0o777 == 0o600


def test_ends_of_workers_and_stop_signals_go_both_ways(pair):
    others, (_, link, *_) = pair
    link.send(rank=1, end=dataclasses.asdict(GOOD))
    link.send(signal=15)
    received = []
    exchanged(others, lambda: received, received)
    assert (others.ends, received) == ({1: GOOD}, [15])
    exchanged(others, lambda: link.read(0.1) == [{"signal": 15}], received)
    link.send(over=0)
    exchanged(others, lambda: others.are_over, received)
    others.close()
    wait_until(lambda: link.read(0.1) == [] and link.is_closed)


@pytest.mark.parametrize("end", [None, BAD])
def test_a_failure_on_one_node_is_told_to_the_workers_of_this_one_which_have_a_limit(pair, tmp_path, end, monkeypatch):
    others, (_, link, *_) = pair
    for limit in ("REPORT_S", "GRACE_S"):
        monkeypatch.setattr(nodes, limit, 0.0)
    link.send(rank=1, end=None if end is None else dataclasses.asdict(end))
    exchanged(others, (tmp_path / "failed-elsewhere").exists)
    wait_until(lambda: others.is_overdue)


def test_a_failure_here_is_told_to_the_other_nodes(pair, tmp_path):
    others, (_, link, *_) = pair
    others.exchange([], {0: BAD})
    assert wait_until(lambda: link.read(0.1)) == [{"failed": True}]
    assert not (tmp_path / "failed-elsewhere").exists()


def test_a_node_that_goes_without_a_word_is_lost_and_one_that_has_ended_is_not(pair):
    others, (_, link, *_) = pair
    link.close()
    exchanged(others, lambda: others.lost)
    assert [node.number for node in others.lost] == [1]


def test_a_node_that_has_said_its_end_may_go(pair):
    others, (_, link, *_) = pair
    link.send(over=0)
    link.close()
    exchanged(others, lambda: others.nodes[0].link.is_closed)
    assert (others.lost, others.are_over) == ([], True)


@pytest.mark.parametrize("said", [b'{"token": "", "host": "elsewhere"}', b'{"token": "\xc3\xbc"}', b"[]", b"GET /"])
def test_a_stranger_is_no_node(tmp_path, monkeypatch, said):
    monkeypatch.setattr(nodes, "JOIN_S", 0.5)

    def intrude():
        call = wait_until(lambda: MEETING.exists() and json.loads(MEETING.read_text()))
        with socket.create_connection(("127.0.0.1", call["port"])) as connection:
            connection.sendall(said + b"\n")
            assert connection.recv(1) == b""

    stranger = threading.Thread(target=intrude)
    stranger.start()
    with pytest.raises(Interrupted, match="1 of 2 nodes have not answered"), call_nodes(CALL, tmp_path, []):
        pass
    stranger.join()
    assert not MEETING.exists()


def test_where_a_node_goes_while_the_first_waits_for_a_third_it_does_not_wait_on(tmp_path):
    def go():
        answer_call(lambda: False, limit_s=30)[1].close()

    with ThreadPoolExecutor(1) as pool:
        gone = pool.submit(go)
        three = dataclasses.replace(CALL, num_nodes=3)
        with pytest.raises(Interrupted, match=r"node 2 \(.*\) has gone"), call_nodes(three, tmp_path, []):
            pass
        gone.result()


def test_the_wait_for_a_node_ends_with_a_signal_and_where_the_batch_script_could_not_start_it(tmp_path):
    with pytest.raises(Interrupted, match="asked to stop while it waited for 1 of 2"), call_nodes(CALL, tmp_path, [15]):
        pass
    (tmp_path / NO_OTHERS).touch()
    with pytest.raises(Interrupted, match="1 of 2 nodes cannot be started"), call_nodes(CALL, tmp_path, []):
        pass


def test_a_follower_that_nobody_calls_ends(tmp_path):
    with pytest.raises(Interrupted, match=r"has not called this one .* in 0.3 s"):
        answer_call(lambda: False, limit_s=0.3)
    with pytest.raises(Interrupted, match="before it was asked to stop"):
        answer_call(lambda: True, limit_s=30)
