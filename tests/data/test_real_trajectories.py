"""200 trajectories of GPT-4o on tau-bench's airline: what they break, and what resampling makes of
them. All counts were looked at in the file."""

from collections import Counter

import pytest

from posttrain.data.importing.importer import import_trajectories
from posttrain.data.resampling.cells import cell_of
from posttrain.data.resampling.coreset import features
from posttrain.data.resampling.quality import mistakes
from posttrain.data.resampling.regenerate import ReplayContext, regenerate
from posttrain.data.resampling.smote import plan_points
from posttrain.data.schemas import TASKS_SCHEMA, TrajectoryRow, trajectories_table
from posttrain.data.validation.validate import validate
from posttrain.runtime.exits import DataError
from posttrain.types import StopReason

CELLS = ["kind", "language"]


@pytest.fixture(scope="module")
def tau_bench(shared_data):
    return shared_data / "tau_bench" / "gpt-4o-airline.json"


@pytest.fixture(scope="module")
def rows(tau_bench) -> list[TrajectoryRow]:
    imported = import_trajectories(tau_bench)
    assert (imported.file_format, imported.bad) == ("tau_bench", [])
    return imported.rows


def test_the_longest_of_them_are_too_long_and_nothing_else_is_wrong_with_them(rows, tau_bench):
    """49 use a call id for several calls of several turns; the import numbers them."""
    verdict = validate([trajectories_table(rows)], [TASKS_SCHEMA.empty_table()], max_tokens=8000, source=tau_bench)
    assert (verdict.num_turns, verdict.num_calls) == (2454, 1164)
    assert verdict.counts() == {"length_limit": 13}
    broken = {
        check.rule.name: (check.num_broken, check.num_trajectories) for check in verdict.checked if check.num_broken
    }
    assert broken == {"length_limit": (13, 13)}


def test_their_visible_mistakes(rows):
    limits = {"num_tokens": 1, "max_turns": 30, "max_context_tokens": 32_768}
    found = [mistakes(row.trajectory.messages, row.trajectory.stop_reason, **limits) for row in rows]
    assert Counter(str(mistake) for those in found for mistake in those) == {"no_final_line": 3, "ends_on_error": 1}


def test_rare_cells_of_imported_trajectories_grow_by_duplicates(rows, toy, replay):
    cells = [cell_of(row, CELLS) for row in rows]
    places = features([row.trajectory.messages for row in rows], seed=1)
    points = plan_points("smote", places, cells, target_frac=0.5, num_neighbors=5, seed=1)
    made = regenerate(points, ReplayContext(rows, {}, toy, replay, []), seed=1)
    assert sorted(Counter(cells).values()) == [18, 18, 164]
    assert len(points) == 2 * (82 - 18)
    assert len(made.rows) == len(points)
    assert not any(made.is_new)


def test_questions_without_answers_are_no_trajectories(shared_data):
    with pytest.raises(DataError, match=r"has records of function, id, question, which no known format has"):
        import_trajectories(shared_data / "bfcl/BFCL_v4_live_simple.json")


def test_they_are_50_tasks_played_four_times(rows):
    assert len(rows) == 200
    assert set(Counter(row.trajectory.task_id for row in rows).values()) == {4}
    assert len({row.trajectory.task_id for row in rows}) == 50
    assert len({row.trajectory_id for row in rows}) == 200
    assert sum(row.trajectory.outcome.success for row in rows) == 84
    assert sum(len(message.tool_calls) for row in rows for message in row.trajectory.messages) == 1164
    assert Counter(row.trajectory.stop_reason for row in rows) == {
        StopReason.DONE: 149,
        StopReason.STOP_TOOL: 48,
        StopReason.TURN_LIMIT: 3,
    }
    assert len(rows[0].tools) == 14
    assert {row.labels["language"] for row in rows} == {"en"}


def test_a_results_file_cut_off_in_the_middle_is_refused(tau_bench, tmp_path):
    text = tau_bench.read_text(encoding="utf-8")
    path = tmp_path / "cut.json"
    path.write_text(text[: text.index('"task_id": 1,')], encoding="utf-8")  # within the second record
    with pytest.raises(DataError, match=r"cut\.json is cut off or damaged .* nothing was read"):
        import_trajectories(path)
