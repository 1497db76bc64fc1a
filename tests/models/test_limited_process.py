"""Whatever a function does in a child with limits, its caller gets a sentence, and goes on."""

import ctypes
import os
import time

import psutil
import pytest

from posttrain.models import limited_process
from posttrain.models.limited_process import raise_memory, run_limited
from posttrain.runtime.exits import ConfigurationError, DataError


class Panic(BaseException):
    """Like pyo3's for a panic of a library in Rust: no Exception."""


def raises(error: BaseException):
    def work(say):
        say("the second step")
        raise error

    return work


def test_what_ends_well_says_nothing_and_leaves_nothing():
    before = psutil.Process().children()
    run_limited(lambda say: say("a step"), subject="it")
    assert psutil.Process().children() == before


def test_an_end_with_a_meaning_keeps_its_kind_and_its_words():
    with pytest.raises(DataError, match=r"^cut off; make it again$"):
        run_limited(raises(DataError("cut off; make it again")), subject="it")


@pytest.mark.parametrize("error", [KeyError("k"), Panic("k"), SystemExit("k"), RecursionError("k"), ValueError("k\nk")])
def test_any_other_error_is_a_sentence_with_the_step_and_a_remedy(error):
    with pytest.raises(
        ConfigurationError, match=r"^it cannot be used: the second step cannot .*k.*choose another"
    ) as end:
        run_limited(raises(error), subject="it")
    assert "\n" not in str(end.value)


def never_ends(say):
    say("its loop")
    while True:
        pass


def fills(say):
    say("its list")
    found = []
    while True:
        found.append(bytearray(2**24))


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (never_ends, r"its loop does not end within 1 s of processor time"),
        (lambda say: time.sleep(60), r"the beginning does nothing any more"),
        (fills, r"its list cannot be read \(MemoryError"),
        (lambda say: "a" * 10**10, r"the beginning cannot be read \(MemoryError"),
        (lambda say: ctypes.string_at(0), r"the beginning ends its process \(signal 11\)"),
        (lambda say: os._exit(0), r"the beginning ends its process \(signal 0\)"),
    ],
)
def test_a_child_that_loops_sleeps_fills_the_memory_or_dies_is_a_sentence(work, said, monkeypatch):
    monkeypatch.setattr(limited_process, "MAX_CPU_S", 1)
    monkeypatch.setattr(limited_process, "MAX_IDLE_S", 1)
    monkeypatch.setattr(limited_process, "MAX_MEMORY", 2**27)  # full long before the second is over
    with pytest.raises(ConfigurationError, match=said):
        run_limited(work, subject="it")


def test_more_memory_can_be_had_for_files(monkeypatch):
    monkeypatch.setattr(limited_process, "MAX_MEMORY", 2**26)

    def work(say):
        raise_memory(2**28)
        bytearray(2**27)

    run_limited(work, subject="it")
    with pytest.raises(ConfigurationError, match="MemoryError"):
        run_limited(lambda say: bytearray(2**27), subject="it")
