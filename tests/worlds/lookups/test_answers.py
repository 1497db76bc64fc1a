from decimal import Decimal

import pytest

from posttrain.worlds.lookups.gold import Answer, Ask, format_answer, parse_final, same

PRICE = Answer("number", Decimal("380.20"), "HKD")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("ANSWER: 380.20 HKD", PRICE),
        ("The price is up.\n**ANSWER: 380.20 HKD**\n", PRICE),
        ("ANSWER: 1,234.50 HKD", Answer("number", Decimal("1234.50"), "HKD")),
        ("ANSWER: -1.25%", Answer("number", Decimal("-1.25"), "%")),
        ("ANSWER：12.00 x", Answer("number", Decimal("12.00"), "x")),
        ("ANSWER: 7", Answer("number", Decimal(7))),
        ("answer: 00700.hk", Answer("code", "00700.HK")),
        ("ANSWER: done.", Answer("choice", "done")),
    ],
)
def test_the_last_line_states_a_typed_answer(text, answer):
    assert parse_final(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "380.20 HKD",
        "ANSWER: 380.20 HKD\nor so",
        "ANSWER:",
        "ANSWER: 380.20 HKD or 381",
        "ANSWER: 1.2.3",
        "ANSWER: " + "9" * 400,
        "ASK: which market?",
    ],
)
def test_anything_else_states_nothing(text):
    assert parse_final(text) is None


def test_a_question_back_names_what_is_missing():
    assert parse_final("ASK: market") == Ask("market")


@pytest.mark.parametrize(
    "answer",
    [
        PRICE,
        Answer("number", Decimal("-0.03"), "%"),
        Answer("number", Decimal(1200000000)),
        Answer("code", "600519.SH"),
        Answer("choice", "done"),
    ],
)
def test_a_formatted_answer_reads_back_as_the_same(answer):
    read = parse_final(format_answer(answer))
    assert isinstance(read, Answer)
    assert same(read, answer)


@pytest.mark.parametrize(
    ("stated", "gold", "is_same"),
    [
        ("12.3 HKD", "12.30 HKD", True),
        ("12.304 HKD", "12.30 HKD", True),
        ("12.305 HKD", "12.30 HKD", False),  # rounds half up to 12.31
        ("1.5 HKD", "15 HKD", False),
        ("1.5 x", "2 x", False),
        ("12.30 CNY", "12.30 HKD", False),
        ("12.30", "12.30 HKD", False),
        ("12.30 hkd", "12.30 HKD", False),
        ("123456789012345678.123456789 HKD", "12.30 HKD", False),
        ("00700.HK", "00700.hk", True),
        ("00700.HK", "600519.SH", False),
        ("done", "none", False),
        ("12.30 HKD", "done", False),
    ],
)
def test_answers_are_compared_by_value_and_unit(stated, gold, is_same):
    first, second = parse_final(f"ANSWER: {stated}"), parse_final(f"ANSWER: {gold}")
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert same(first, second) == is_same
