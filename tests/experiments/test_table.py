"""The table from planted outcomes: who is better, who is not, and what is left out."""

import numpy as np
import pytest

from posttrain.evals.significance import Decision, paired_difference
from posttrain.experiments import verdicts as tables
from posttrain.experiments.arms import Study
from posttrain.experiments.markdown import table_markdown
from posttrain.experiments.record import ArmRecord, Measure
from posttrain.experiments.verdicts import Row, Table
from posttrain.runtime.exits import DataError
from tests.experiments.studies import PARAMS, digits, on_record, run_of, study_of, training

SEEDS = (1, 2, 3, 4, 5)
BASE = {1: 20, 2: 60, 3: 100, 4: 35, 5: 80}  # of 200 tasks: the SFT models of the seeds lie far apart


def make_table(study: Study, regime: str, runs: list[ArmRecord]) -> Table:
    return tables.make_table(study, regime, on_record(study, runs), params=PARAMS)


def rows_by_name(table: Table) -> dict[str, Row]:
    return {row.name: row for row in table.rows}


def noisy(seed: int, num: int, *, by: str) -> str:
    """About `num` of 200 are won, others than in another method's run."""
    rng = np.random.default_rng([seed, num, *by.encode()])
    won = np.array(list(digits(num))) == "1"
    return "".join("1" if one else "0" for one in won ^ (rng.random(len(won)) < 0.05))


def test_a_planted_difference_is_found_under_seeds_that_lie_far_apart_and_equal_methods_are_not_told_apart():
    study = study_of(["grpo", "same", "more"])
    runs = [run_of("grpo", seed, noisy(seed, BASE[seed], by="grpo")) for seed in SEEDS]
    runs += [run_of("same", seed, noisy(seed, BASE[seed], by="same")) for seed in SEEDS]
    runs += [run_of("more", seed, noisy(seed, BASE[seed] + 30, by="more")) for seed in SEEDS]
    rows = rows_by_name(make_table(study, "hard", runs))
    assert list(rows) == ["grpo", "same", "more"]
    assert rows["grpo"].measured[Measure.PLAIN].difference is None
    assert rows["more"].measured[Measure.PLAIN].difference.decision is Decision.BETTER
    assert rows["more"].measured[Measure.PLAIN].difference.estimate == pytest.approx(0.15, abs=0.03)
    assert rows["same"].measured[Measure.PLAIN].difference.decision in (Decision.TIED, Decision.NEEDS_MORE)
    low, high = rows["more"].measured[Measure.PLAIN].success[1:]
    assert high - low > 0.3, "a mean alone knows of the seeds, too"


def test_p_values_are_corrected_for_the_number_of_methods():
    """Two methods: the smaller p-value counts twice."""
    study = study_of(["grpo", "more", "same"])
    runs = {
        name: [run_of(name, seed, noisy(seed, BASE[seed] + more, by=name)) for seed in SEEDS]
        for name, more in (("grpo", 0), ("more", 30), ("same", 0))
    }
    rows = rows_by_name(make_table(study, "hard", [run for own in runs.values() for run in own]))
    outcomes = {name: [run.outcomes(Measure.PLAIN) for run in own] for name, own in runs.items()}
    alone = paired_difference(outcomes["grpo"], outcomes["more"]).p_value
    assert rows["more"].measured[Measure.PLAIN].difference.p_value == pytest.approx(2 * alone)


def test_strict_success_has_a_verdict_of_its_own():
    study = study_of(["grpo", "loose"])
    runs = [run_of("grpo", seed, digits(BASE[seed])) for seed in SEEDS]
    runs += [
        run_of("loose", seed, noisy(seed, BASE[seed] + 40, by="loose"), strict_won=digits(BASE[seed])) for seed in SEEDS
    ]
    row = rows_by_name(make_table(study, "hard", runs))["loose"]
    assert (row.measured[Measure.PLAIN].difference.decision, row.measured[Measure.STRICT].difference.estimate) == (
        Decision.BETTER,
        0.0,
    )


@pytest.mark.parametrize("other", [{"sft": "another"}, {"code": "another"}, {"tasks": "others"}])
def test_a_run_from_another_model_or_of_other_code_is_no_pair_and_is_said(other):
    study = study_of(["grpo", "rloo"])
    runs = [run_of("grpo", seed, digits(BASE[seed])) for seed in SEEDS]
    runs += [run_of("rloo", seed, digits(BASE[seed]), **(other if seed in (2, 4) else {})) for seed in SEEDS]
    table = make_table(study, "hard", runs)
    assert list(rows_by_name(table)["rloo"].runs) == [1, 3, 5]
    [note] = table.notes
    assert note.startswith("rloo: of seed 2, 4 left out")


def test_a_method_without_a_pair_has_no_row():
    table = make_table(
        study_of(["grpo", "rloo"]), "hard", [run_of("grpo", 1, digits(20)), run_of("rloo", 2, digits(20))]
    )
    assert (list(rows_by_name(table)), len(table.notes)) == (["grpo"], 1)


def test_runs_of_a_method_whose_lines_were_edited_since_are_not_mixed_with_those_of_today():
    study = study_of(["grpo", "rloo"])
    runs = [run_of("grpo", seed, digits(BASE[seed])) for seed in SEEDS]
    runs += [run_of("rloo", seed, digits(BASE[seed]), params="p" if seed < 4 else "older") for seed in SEEDS]
    table = make_table(study, "hard", [*runs, run_of("gone", 1, digits(20))])
    assert {name: list(row.runs) for name, row in rows_by_name(table).items()} == {
        "grpo": list(SEEDS),
        "rloo": [1, 2, 3],
    }
    assert table.notes == [
        "left out, because their knobs are others today: hard-gone-seed1, hard-rloo-seed4, hard-rloo-seed5"
    ]


@pytest.mark.parametrize("runs", [[], [run_of("rloo", 1, digits(20))], [run_of("grpo", 1, digits(20), params="older")]])
def test_without_the_baseline_there_is_no_table(runs):
    with pytest.raises(DataError, match="no run of grpo with the knobs of today is on record in hard"):
        make_table(study_of(["grpo", "rloo"]), "hard", runs)


def test_the_page_says_who_sees_an_expert_who_is_a_control_and_how_the_training_went():
    study = study_of(["grpo", "luffy", "coin"], oracles=("luffy",), controls=("coin",))
    went = training(
        means={"frac_tokens_nonzero_advantage": 0.32},
        last={"frac_tokens_nonzero_advantage": 0.28},
        dev_first={"dev_success": 0.15},
        dev_last={"dev_success": 0.25},
        seconds=None,
    )
    runs = [run_of(name, seed, digits(50), training=went) for name in study.methods for seed in (1, 2)]
    page = table_markdown(make_table(study, "hard", runs), study)
    lines = page.splitlines()
    assert [line.split(" | ")[:3] for line in lines if line.startswith("| `") and "%" in line][:3] == [
        ["| `grpo`", "", "2"],
        ["| `luffy`", "an expert", "2"],
        ["| `coin` (control)", "", "2"],
    ]
    assert "25.0 % (" in page
    assert (
        "| 20 | 60,000 | 1,280 | 160 | 32 % → 28 % | – → – | – → – | – → – | – → – | – → – | – → – | 15 % → 25 % | – |"
        in page
    )
    assert "- `luffy`: what luffy does" in page
    assert "corrected for 2 methods" in page
    assert "abc1234" in page
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert widths == {16, 15}, "every row has the cells of its titles"
