from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from posttrain.data.resampling.cells import cell_of, count_cells, opening_text, steps_of
from posttrain.data.resampling.coreset import features
from posttrain.data.resampling.quality import mistakes
from posttrain.data.resampling.regenerate import ReplayContext, regenerate
from posttrain.data.resampling.smote import Point, contamination, plan_points, refuse_contaminated, wanted_sizes
from posttrain.data.schemas import TrajectoryRow
from posttrain.runtime.exits import DataError
from posttrain.worlds.toy.domain import ToyDomain

CELLS = ["kind", "shop", "language"]


def has_mistakes(row: TrajectoryRow, toy: ToyDomain) -> bool:
    read_only = {name for name, tool in toy.tools.items() if tool.is_read_only}
    played = row.trajectory
    limits = {"num_tokens": 1, "max_turns": 6, "max_context_tokens": 1024}
    return bool(mistakes(played.messages, played.stop_reason, **limits, read_only=read_only))


@pytest.fixture(scope="module")
def good_rows(toy_rows, toy):
    return [row for row in toy_rows if not has_mistakes(row, toy)]


@pytest.fixture(scope="module")
def context(toy, toy_tasks, replay, good_rows):
    own = {task.task_id: task for task in toy_tasks["sft"]}
    return ReplayContext(good_rows, own, toy, replay, [*toy.tasks("rl", 40), *toy_tasks["dev"], *toy_tasks["test"]])


@pytest.fixture(scope="module")
def points(good_rows):
    cells = [cell_of(row, CELLS) for row in good_rows]
    places = features([row.trajectory.messages for row in good_rows], seed=1)
    return plan_points("smote", places, cells, target_frac=0.5, num_neighbors=3, seed=1)


@pytest.fixture(scope="module")
def new_rows(points, context):
    return regenerate(points, context, seed=1)


def clusters(*sizes_and_places: tuple[int, float]) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(place, 0.1, (size, 2)) for size, place in sizes_and_places])


def test_rare_cells_grow_to_the_share_and_none_shrinks():
    assert wanted_sizes(["a"] * 10 + ["b"] * 2 + ["c"] * 7, 0.5) == {"a": 10, "b": 5, "c": 7}


def test_a_point_is_made_from_the_nearest_rows_of_its_own_cell():
    cells = ["a"] * 10 + ["b"] * 4
    found = plan_points("smote", clusters((10, 0.0), (4, 5.0)), cells, target_frac=0.8, num_neighbors=3, seed=1)
    assert [point.cell for point in found] == ["b"] * 4
    assert all(len(set(point.seeds)) == 3 and min(point.seeds) >= 10 for point in found)


def test_cells_apart_are_not_contaminated_and_cells_that_mingle_are():
    cells = ["a"] * 30 + ["b"] * 6
    apart = plan_points("smote", clusters((30, 0.0), (6, 5.0)), cells, target_frac=1.0, num_neighbors=5, seed=1)
    mingled = plan_points("smote", clusters((30, 0.0), (6, 0.0)), cells, target_frac=1.0, num_neighbors=5, seed=1)
    assert contamination(apart) == 0
    assert contamination(mingled) > 0.5


def test_a_rate_above_the_limit_is_refused_with_the_worst_cells():
    found = [Point("a", (0,), True), Point("b", (1,), True), Point("b", (1,), True), Point("b", (1,), False)]
    refuse_contaminated(found, max_contamination=0.75)
    with pytest.raises(DataError) as caught:
        refuse_contaminated(found, max_contamination=0.7)
    for part in ("3 of 4", "75.0%", "70.0%", "worst: b 2 of 3, a 1 of 1"):
        assert part in str(caught.value)


def test_no_points_are_not_contaminated():
    assert contamination([]) == 0
    assert plan_points("smote", clusters((4, 0.0)), ["a"] * 4, target_frac=1.0, num_neighbors=5, seed=1) == []


def test_a_cell_smaller_than_the_neighbourhood_uses_the_neighbours_it_has():
    cells, places = ["a"] * 8 + ["b"] * 2 + ["c"], clusters((8, 0.0), (2, 5.0), (1, 9.0))
    found = plan_points("smote", places, cells, target_frac=0.5, num_neighbors=5, seed=1)
    assert Counter(point.cell for point in found) == {"b": 2, "c": 3}
    assert all(set(point.seeds) == {8, 9} and not point.is_contaminated for point in found if point.cell == "b")
    assert all(point.seeds == (10,) for point in found if point.cell == "c")


def test_duplicates_are_drawn_from_the_cell_itself():
    cells = ["a"] * 10 + ["b"] * 2
    found = plan_points("duplicate", np.zeros((12, 1)), cells, target_frac=0.5, num_neighbors=5, seed=1)
    assert [point.cell for point in found] == ["b"] * 3
    assert all(set(point.seeds) <= {10, 11} for point in found)


def test_every_result_of_a_new_row_is_what_the_tool_says(new_rows, toy):
    checked = 0
    for row, is_new in zip(new_rows.rows, new_rows.is_new, strict=True):
        results = {
            message.tool_call_id: message.content for message in row.trajectory.messages if message.role == "tool"
        }
        for call in (call for message in row.trajectory.messages for call in message.tool_calls):
            if is_new and '"error"' not in results[call.id]:
                assert toy.tools[call.name].call(call.arguments) == results[call.id]
                checked += 1
    assert checked > 100


def test_a_new_row_is_in_the_points_cell_and_takes_its_demonstrations_steps(points, new_rows, good_rows, toy):
    assert sum(new_rows.is_new) > 0.8 * len(points)
    for point, row, is_new in zip(points, new_rows.rows, new_rows.is_new, strict=True):
        assert cell_of(row, CELLS) == point.cell
        behaviours = {
            steps_of(good_rows[seed].trajectory.messages) for seed in (point.seeds if is_new else point.seeds[:1])
        }
        assert steps_of(row.trajectory.messages) in behaviours
        assert not has_mistakes(row, toy)


def test_a_new_row_asks_what_no_other_asks_about_companies_of_the_training_split_only(new_rows, context, good_rows):
    new = [row for row, is_new in zip(new_rows.rows, new_rows.is_new, strict=True) if is_new]
    texts = [opening_text(row.trajectory.messages) for row in [*new, *good_rows]]
    held_out = {company for task in context.held_out for company in task.entities}
    assert len(set(texts)) == len(texts)
    assert not set(texts) & {opening_text(task.messages) for task in context.held_out}
    assert all(row.split == "sft" and not held_out & set(row.entities) for row in new)
    assert held_out


def test_regenerating_twice_gives_the_same_rows(new_rows, points, context):
    assert regenerate(points, context, seed=1) == new_rows


def test_what_the_world_cannot_play_is_duplicated_and_said(points, context):
    imported = regenerate(points[:3], replace(context, tasks={}), seed=1)
    assert imported.is_new == [False, False, False]
    assert imported.rows == [context.rows[point.seeds[0]] for point in points[:3]]


def test_a_world_that_realises_a_held_out_task_is_our_bug(points, context, toy_tasks):
    class Leaking:
        name, tools = context.domain.name, context.domain.tools

        def regenerate(self, task, *, seed):
            return toy_tasks["test"][0]

    with pytest.raises(RuntimeError, match="of split test for training"):
        regenerate(points[:1], replace(context, domain=Leaking()), seed=1)


def test_the_class_table_follows_each_cell_through_the_steps():
    counts = count_cells(["a", "a", "b"], ["a", "b"], ["a", "b"], ["b"])
    assert counts == {
        "a": {"validated": 2, "after_quality": 1, "after_coreset": 1, "after": 1},
        "b": {"validated": 1, "after_quality": 1, "after_coreset": 1, "after": 2},
    }
