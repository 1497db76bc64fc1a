import sys

import pytest

from posttrain.report.run_reader import DpoLine, Evaluation, GrpoLine
from posttrain.tracking import wandb_workspace
from posttrain.tracking.metrics_log import read_metrics
from posttrain.tracking.wandb_sink import SUMMARIES
from posttrain.tracking.wandb_workspace import FIGURES, LINES


def test_what_is_summarised_and_drawn_is_what_a_training_and_an_evaluation_measure(repository):
    lines = [read_metrics(repository / f"reports/{stage}/metrics.jsonl") for stage in ("train_sft", "train_policy")]
    measured = {name for one in lines for line in one for name in line}
    measured |= {*DpoLine.model_fields, *GrpoLine.model_fields}
    drawn = {name for panels in LINES.values() for metrics in panels.values() for name in metrics}
    assert ({*SUMMARIES} - measured, drawn - measured) == (set(), set())
    assert set(FIGURES) <= set(Evaluation.model_fields)


def test_the_three_parts_of_groups_without_a_difference_are_one_panel():
    (panel,) = [metrics for metrics in LINES["Health"].values() if "frac_reward_zero_std" in metrics]
    assert len(panel) == 4
    assert all(name.startswith("frac_reward_zero_std") for name in panel)


@pytest.mark.parametrize("place", ["mine", "/mine", "team/"])
def test_a_place_that_is_no_project_is_refused(place, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["workspace", place])
    with pytest.raises(SystemExit) as end:
        wandb_workspace.main()
    assert (end.value.code, "TEAM/PROJECT" in capsys.readouterr().err) == (78, True)
