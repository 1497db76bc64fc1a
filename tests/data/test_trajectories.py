"""Any trajectory goes through a table and through a line of JSON and comes back, all of its fields;
what a clock said is in neither."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from posttrain.data.schemas import TRAJECTORY_COLUMNS, trajectory_columns, trajectory_from_columns
from tests.traces.drawn import TEXTS, Draw


class Utf8Draw(Draw):
    """Parquet's text is UTF-8, which cannot hold half of a surrogate pair."""

    texts = tuple(text for text in TEXTS if "\ud83d" not in text)


def through_a_table(trajectories):
    schema = pa.schema(TRAJECTORY_COLUMNS)
    rows = [{name: trajectory_columns(one)[name] for name, _ in TRAJECTORY_COLUMNS} for one in trajectories]
    assert all(set(row) == set(schema.names) for row in map(trajectory_columns, trajectories))
    return [trajectory_from_columns(row) for row in pa.Table.from_pylist(rows, schema=schema).to_pylist()]


def through_json(trajectories):
    return [trajectory_from_columns(json.loads(json.dumps(trajectory_columns(one)))) for one in trajectories]


@pytest.mark.parametrize(("form", "draw"), [(through_a_table, Utf8Draw), (through_json, Draw)])
def test_every_field_of_any_trajectory_comes_back_equal(form, draw):
    drawn = [draw(seed).trajectory() for seed in range(500)]
    assert form(drawn) == drawn


def test_equal_trajectories_have_equal_columns_whatever_the_clock_said():
    for seed in range(100):
        one = Draw(seed).trajectory()
        later = replace(one, turns=tuple(replace(turn, latency_s=turn.latency_s + 1) for turn in one.turns))
        assert trajectory_columns(later) == trajectory_columns(one)
