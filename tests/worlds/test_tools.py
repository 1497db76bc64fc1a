"""Parsing of an agent's arguments and of a tool's text."""

import pytest

from posttrain.worlds.tools import Tool, ToolError, json_or_text

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "any": True,
        "list": {"type": "array", "items": True},
    },
}
TOOL = Tool("buy", "Buy.", SCHEMA, lambda **arguments: arguments)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ('{"count":3,"price":2}', {"count": 3, "price": 2.0}),
        ('{"count":"3","price":"-2.50"}', {"count": 3, "price": -2.5}),
        ('{"count":9007199254740993,"price":1e-05}', {"count": 2**53 + 1, "price": 1e-05}),
        ('{"count":4.0}', {"count": 4}),
        ('{"any":[{}],"list":[1,"x"]}', {"any": [{}], "list": [1, "x"]}),
    ],
)
def test_numbers_are_read_as_they_are(arguments, read):
    assert TOOL.parse(arguments) == read


@pytest.mark.parametrize(
    "arguments",
    [
        f'{{"count":{"9" * 400}}}',
        f'{{"price":{"9" * 400}}}',
        f'{{"price":"{"9" * 400}"}}',
        f'{{"count":{"9" * 5000}}}',
        '{"price":1e400}',
        '{"price":NaN}',
        '{"any":{"x":[-Infinity]}}',
        '{"count":true}',
        '{"count":2.5}',
        '{"price":"2,5"}',
    ],
    ids=[f"wrong {place}" for place in range(10)],
)
def test_an_argument_that_is_no_number_is_the_agents_mistake(arguments):
    with pytest.raises(ToolError, match=r"must be of type|arguments hold NaN"):
        TOOL.parse(arguments)


@pytest.mark.parametrize("text", ["1.10", "007", "7734e12", "NaN", "null", "true", '"x"', '{"x":NaN}', "[1", ""])
def test_a_text_that_is_no_object_or_list_stays_the_text_that_it_is(text):
    assert json_or_text(text) == text


def test_an_object_or_a_list_is_read():
    assert json_or_text('{"x":[1.5]}') == {"x": [1.5]}
    assert json_or_text(" [1] ") == [1]
