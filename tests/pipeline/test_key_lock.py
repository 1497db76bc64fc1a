"""A key is one holder's at a time, between threads and after a death."""

import os
import subprocess
import sys
import threading

import pytest

from posttrain.pipeline.executor import lock_key
from posttrain.runtime.exits import Interrupted
from tests.waiting import wait_until


def test_the_second_comer_waits_and_knows_that_it_has(tmp_path):
    told, order, inside = [], [], threading.Event()

    def second():
        with lock_key(tmp_path, "key", told.append, is_stopped=lambda: False) as has_waited:
            order.append(has_waited)

    with lock_key(tmp_path, "key", told.append, is_stopped=lambda: False) as has_waited:
        assert not has_waited
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: told, limit_s=30, what="the second comer")
        inside.set()
        assert not order
    thread.join()
    assert (order, len(told)) == ([True], 1)
    assert not list(tmp_path.iterdir())


def test_other_keys_wait_for_nothing(tmp_path):
    with (
        lock_key(tmp_path, "a", print, is_stopped=lambda: False),
        lock_key(tmp_path, "b", print, is_stopped=lambda: False) as has_waited,
    ):
        assert not has_waited


def test_a_holder_that_was_killed_holds_nothing(tmp_path, repository):
    hold = (
        "import sys, os, signal; from pathlib import Path; from posttrain.pipeline.executor import lock_key\n"
        "with lock_key(Path(sys.argv[1]), 'key', print, is_stopped=lambda: False):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    assert subprocess.run([sys.executable, "-c", hold, str(tmp_path)], env=environment, check=False).returncode == -9
    with lock_key(tmp_path, "key", print, is_stopped=lambda: False) as has_waited:
        assert not has_waited


def test_a_run_that_is_stopped_waits_no_longer(tmp_path):
    with (
        lock_key(tmp_path, "key", print, is_stopped=lambda: False),
        pytest.raises(Interrupted),
        lock_key(tmp_path, "key", lambda _: None, is_stopped=lambda: True),
    ):
        pass
