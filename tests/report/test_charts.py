"""The charts, worked out on paper: where points fall, which ticks an axis has, and that labels are
text."""

import re
from xml.etree import ElementTree

import pytest

from posttrain.report.charts import Axis, Series, axis_over, interval_chart, line_chart, log_axis_over, stacked_chart

UNIT = Axis("x", 0, 1)


def numbers(markup: str, element: str, attribute: str) -> list[str]:
    return re.findall(rf'<{element} [^>]*\b{attribute}="([^"]*)"', markup)


def test_an_axis_has_round_ticks_within_its_range():
    assert [round(tick, 9) for tick in UNIT.ticks()] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert Axis("step", 0.5, 30.5).ticks() == [10, 20, 30]
    assert [round(tick, 9) for tick in Axis("loss", 0.13, 0.19).ticks()] == [0.14, 0.16, 0.18]
    assert Axis("step", 0.5, 2.5, is_whole=True).ticks() == [1, 2]
    assert Axis("kl", -3, 3).ticks() == [-2, 0, 2]


def test_a_scale_of_ratios_has_equal_steps_for_equal_ratios():
    axis = log_axis_over("loss", [0.03, 2.0, 7.5])
    assert (axis.low, axis.high) == (0.01, 10)
    assert axis.ticks() == [0.01, 0.1, 1, 10]
    assert [axis.share(value) for value in (0, 0.01, 0.1, 1, 10)] == pytest.approx([0, 0, 1 / 3, 2 / 3, 1])
    assert log_axis_over("", [1.0]).ticks() == log_axis_over("", []).ticks() == [1, 10]


def test_a_percent_axis_writes_percent_and_another_writes_the_number():
    assert Axis("", 0, 1, percent=True).text(0.25) == "25 %"
    assert UNIT.text(0.2000000001) == "0.2"


def test_an_axis_over_values_holds_them_all_and_its_floor():
    axis = axis_over("loss", [2.0, 4.0], floor=0)
    assert (axis.low, axis.high) == (0, 4.2)


def test_an_axis_over_one_value_or_none_still_has_a_width():
    assert axis_over("", [3.0]).low < 3 < axis_over("", [3.0]).high
    assert axis_over("", []).low < axis_over("", []).high


def test_a_line_runs_from_the_lower_left_corner_to_the_upper_right_one():
    # The plot is 420 - 46 - 20 = 354 wide from x = 46, and 230 - 12 - 36 = 182 high down to y =
    # 194.
    markup = line_chart("t", [Series("s", [(0, 0), (1, 1)], 0)], UNIT, UNIT)
    assert 'class="line c0" d="M46.0 194.0L400.0 12.0"' in markup


def test_stacked_layers_stand_on_each_other():
    markup = stacked_chart("t", [0.5], [("low", [0.25]), ("high", [0.5])], UNIT, UNIT)
    columns = list(zip(numbers(markup, "rect", "y"), numbers(markup, "rect", "height"), strict=False))[:2]
    # 0.25 of 182 is 45.5: the first from 194 up to 148.5, the second 91 higher.
    assert columns == [("148.5", "45.5"), ("57.5", "91.0")]


def test_an_interval_is_drawn_from_low_to_high_with_its_value_between():
    # 420 - 70 - 20 = 330 wide from x = 70.
    markup = interval_chart("t", [("sft", 0.5, 0.4, 0.6)], Axis("", 0, 1))
    assert "M202.0 20H268.0" in markup
    assert 'cx="235.0"' in markup


def test_a_legend_is_shown_only_where_there_is_something_to_tell_apart():
    one, two = Series("alone", [(0, 0), (1, 1)], 0), Series("other", [(0, 1), (1, 0)], 1)
    assert "legend" not in line_chart("t", [one], UNIT, UNIT)
    assert "alone" in line_chart("t", [one, two], UNIT, UNIT)


def test_labels_are_text_and_the_markup_is_well_formed():
    markup = line_chart(
        '<b> & "t"', [Series("<script>", [(0, 0), (1, 1)]), Series("b", [])], Axis("<x>", 0, 1), Axis("&y", 0, 1)
    )
    assert "<script>" not in markup
    assert ElementTree.fromstring(str(markup)).tag == "figure"
