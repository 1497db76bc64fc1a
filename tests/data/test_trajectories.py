"""Any trajectory goes through a table and through a line of JSON and comes back, all of its fields;
what a clock said is in neither."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from posttrain.data.trajectories import COLUMNS, trajectory_columns, trajectory_from_columns
from posttrain.types import Trajectory
from tests.traces.drawn import Draw

DRAWN = [Draw(seed).trajectory() for seed in range(500)]


def through_a_table(trajectories):
    schema = pa.schema(COLUMNS)
    rows = [{name: trajectory_columns(one)[name] for name, _ in COLUMNS} for one in trajectories]
    assert all(set(row) == set(schema.names) for row in rows)
    return [trajectory_from_columns(row) for row in pa.Table.from_pylist(rows, schema=schema).to_pylist()]


def through_json(trajectories):
    return [trajectory_from_columns(json.loads(json.dumps(trajectory_columns(one)))) for one in trajectories]


@pytest.mark.parametrize("form", [through_a_table, through_json])
def test_every_field_of_any_trajectory_comes_back_equal(form):
    drawn = [one for one in DRAWN if form is through_json or not has_half_a_pair(one)]
    assert len(drawn) > 50
    assert form(drawn) == drawn


def test_equal_trajectories_have_equal_columns_whatever_the_clock_said():
    for one in DRAWN:
        later = replace(one, turns=tuple(replace(turn, latency_s=turn.latency_s + 1) for turn in one.turns))
        assert trajectory_columns(later) == trajectory_columns(one)


def has_half_a_pair(trajectory: Trajectory) -> bool:
    """Parquet's text is UTF-8, which cannot hold it."""
    return "\\ud83d" in ascii(trajectory)
