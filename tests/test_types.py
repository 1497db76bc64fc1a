"""Numbers of others: finite, bounded, refused where they enter."""

import math

import pytest

from posttrain.types import BadNumber, Outcome, number


@pytest.mark.parametrize("value", [0, -1.5, 1e9, -1e9, True])
def test_a_number_within_its_bounds_is_that_float(value):
    assert number(value, "x") == value
    assert type(number(value, "x")) is float


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "x is nan; it must be a number from -1e+09 to 1e+09"),
        (math.inf, "x is inf;"),
        (-math.inf, "x is -inf;"),
        (1.1e9, "x is 1100000000.0;"),
        (10**400, "x is an integer of more than 20 digits;"),
        (10**5000, "x is an integer of more than 20 digits;"),
        ("1", "x is '1';"),
        (b"1", "x is b'1';"),
        (None, "x is None;"),
        ([1.0] * 100, "1.0, 1.0,; it must"),
    ],
    ids=[f"value {place}" for place in range(10)],
)
def test_what_cannot_be_computed_with_is_refused_in_a_sentence(value, said):
    with pytest.raises(BadNumber) as raised:
        number(value, "x")
    assert said in str(raised.value)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("bad", [math.nan, math.inf, 10**400, "1"], ids=["nan", "inf", "long", "text"])
def test_no_world_gives_a_verdict_with_such_a_number(bad):
    for given in ({"reward": bad}, {"turn_scores": (0.0, bad)}, {"scores": {"progress": bad}}):
        with pytest.raises(BadNumber, match="an outcome's"):
            Outcome(True, True, **given)
    with pytest.raises(BadNumber, match=r"score 'progress' is 1\.5"):
        Outcome(True, True, scores={"progress": 1.5})
