"""What attempts at one result leave for the one that ends it."""

import pytest

from posttrain.provenance import costs as module
from posttrain.provenance.costs import ATTEMPTS, Attempts


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_one_that_was_never_stopped_has_no_others(tmp_path, clock):
    attempts = Attempts(tmp_path)
    for step in range(1, 9):
        attempts.update(step, 8)
    assert attempts.end() == (0.0, ())
    assert not (tmp_path / ATTEMPTS).exists()


def test_killed_ones_count_as_far_as_they_told_and_say_where_they_were_gone_on_with(tmp_path, clock):
    first = Attempts(tmp_path)
    for step in range(1, 5):
        clock[0] += 30
        first.update(step, 100)
    clock[0] += 30  # and is killed: of this nobody knows
    second = Attempts(tmp_path)
    clock[0] += 5
    second.update(4, 100)  # the checkpoint was of step 3
    third = Attempts(tmp_path)
    third.update(51, 100)
    assert third.end() == (120.0 + 5.0, (3, 50))
    assert Attempts(tmp_path).end() == (0.0, ()), "the next result is another one's"


def test_one_that_ended_before_its_first_step_is_no_mark_on_a_curve(tmp_path, clock):
    Attempts(tmp_path)
    second = Attempts(tmp_path)
    second.update(1, 10)
    assert second.end() == (0.0, ())


def test_several_loops_have_no_common_steps(tmp_path, clock):
    Attempts(tmp_path).update(3, 480)
    second = Attempts(tmp_path)
    second.update(7, 1920)
    assert second.end()[1] == ()


def test_a_process_of_its_own_tells_for_the_one_that_began(tmp_path, clock):
    Attempts(tmp_path).update(1, 10)
    frame = Attempts(tmp_path)
    Attempts(tmp_path, is_new=False).update(6, 10)
    assert frame.end() == (0.0, (5,))


@pytest.mark.parametrize(
    "text", ["", "{", "[1]\n", '{"seconds": "x", "first": null}\n', '{"seconds": 1, "first": [1]}\n']
)
def test_what_is_damaged_is_passed_over(tmp_path, clock, text):
    (tmp_path / ATTEMPTS).write_text(text)
    assert Attempts(tmp_path).end() == (0.0, ())
