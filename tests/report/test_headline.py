"""The numbers and curves that DVC shows are those of the reports, and none that a run has not."""

import csv

import pytest
import yaml

from posttrain.report.headline import curves, headline
from posttrain.report.page import read_reports
from tests.report.dvc_tree import AFTER_DPO
from tests.report.example import evaluation


def test_the_numbers_of_the_headline_are_those_of_the_reports(make_reports):
    assert headline(read_reports(make_reports(), {})) == pytest.approx(
        {
            "policy_strict_success": 0.8,
            "policy_strict_pass_hat_4": 0.4096,  # 0.8⁴
            "policy_success": 0.9,
            "policy_pass_hat_4": 0.6561,  # 0.9⁴
            "policy_paraphrase_strict_success": 0.35,
            "policy_paraphrase_success": 0.45,
            "policy_turns": 2.5,
            "sft_strict_success": 0.5,
            "sft_strict_pass_hat_4": 0.0625,  # 0.5⁴
            "sft_success": 0.6,
            "sft_pass_hat_4": 0.1296,  # 0.6⁴
            "sft_dev_loss": 0.375,  # 3 / 40 + 0.3, of the last of four evaluations
            "grpo_reward_std": 0.207,  # 0.3 - 0.006 × 15.5, the mean of the steps 1 … 30
            "grpo_frac_reward_zero_std": 0.125 + 0.5 * 20 / 30,  # from step 11 on half of the groups more
            "reward_model_accuracy": 0.9,
            "reward_model_accuracy_low": 0.84,
            "reward_model_accuracy_high": 0.94,
            "reward_model_best_of_4_gain": 0.25,  # 0.8 - 0.55
        }
    )


def test_what_a_run_has_not_is_none_and_no_number(make_reports):
    policy = evaluation(0.8) | {"paraphrase": None}
    numbers = headline(read_reports(make_reports(AFTER_DPO | {"evaluate/policy.json": policy}), {}))
    assert {name for name, number in numbers.items() if number is None} == {
        "grpo_reward_std",
        "grpo_frac_reward_zero_std",
        "policy_paraphrase_strict_success",
        "policy_paraphrase_success",
    }


@pytest.mark.parametrize(("changes", "num_grpo", "num_dpo"), [({}, 30, 0), (AFTER_DPO, 0, 20)])
def test_a_curve_has_a_row_per_step_and_no_empty_cell(make_reports, changes, num_grpo, num_dpo):
    tables = {
        name: list(csv.DictReader(text.splitlines()))
        for name, text in curves(read_reports(make_reports(changes), {})).items()
    }
    assert {name: len(rows) for name, rows in tables.items()} == {
        "sft_train.csv": 40,
        "sft_dev.csv": 4,
        "grpo.csv": num_grpo,
        "dpo.csv": num_dpo,
    }
    assert tables["sft_dev.csv"][0] == {"step": "10", "eval_loss": "0.6"}
    assert all(cell for rows in tables.values() for row in rows for cell in row.values())


def test_every_column_is_drawn_and_every_plot_has_a_column(make_reports, repository):
    columns = {
        (f"reports/curves/{name}", column)
        for name, text in curves(read_reports(make_reports(), {})).items()
        for column in text.partition("\n")[0].split(",")
    }
    graph = yaml.safe_load((repository / "dvc.yaml").read_text(encoding="utf-8"))
    plots = [plot for entry in graph["plots"] for plot in entry.values()]
    drawn = {(file, column) for plot in plots for file, y in plot["y"].items() for column in (plot["x"], y)}
    assert drawn == columns
