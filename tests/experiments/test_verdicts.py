"""Verdicts from planted outcomes: who is better, who is not, and what is left out."""

import numpy as np
import pytest

from posttrain.evals.significance import paired_difference
from posttrain.experiments import verdicts
from posttrain.experiments.plan import Plan, read_plan
from posttrain.experiments.verdicts import Row, Table, make_table, table_markdown
from posttrain.report.arms import Arm, PolicyResult, Training
from posttrain.report.run_reader import CostRate, Measure
from posttrain.runtime.exits import DataError

SEEDS = (1, 2, 3, 4, 5)
BASE = {1: 20, 2: 60, 3: 100, 4: 35, 5: 80}  # of 200 tasks: the SFT models of the seeds lie far apart
NUM_TASKS = 200
TRAINING = Training(
    steps=20,
    generated_tokens=60_000,
    rollouts=1280,
    groups=160,
    means={"frac_tokens_nonzero_advantage": 0.32},
    last={"frac_tokens_nonzero_advantage": 0.28},
    dev_first={"dev_success": 0.15},
    dev_last={"dev_success": 0.25},
    seconds=None,
)


def plan_of(*names: str, **more: object) -> Plan:
    """The first is the baseline."""
    plan = read_plan(None, [{"name": name, "about": f"what {name} does", **more} for name in names], [1])
    return plan.model_copy(update={"name": "hard", "about": "a plan of tests", "baseline": names[0]})


def digits(num: int) -> str:
    """The first `num` tasks are won."""
    return "1" * num + "0" * (NUM_TASKS - num)


def noisy(seed: int, num: int, *, by: str) -> str:
    """About `num` of 200 are won, others than in another override's arm."""
    rng = np.random.default_rng([seed, num, *by.encode()])
    won = np.array(list(digits(num))) == "1"
    return "".join("1" if one else "0" for one in won ^ (rng.random(len(won)) < 0.05))


def result(won: str, *, strict_won: str | None = None, tasks: str = "t") -> PolicyResult:
    plain = {"success_rate": 0.5, "ci_low": 0.4, "ci_high": 0.6}
    rates = plain | {f"strict_{name}": rate for name, rate in plain.items()} | {"num_tasks": NUM_TASKS}
    strict = won if strict_won is None else strict_won
    return PolicyResult(**rates, tasks=tasks, won=won, strict_won=strict, sampled_won=" ".join(won))


def arm(override: str, seed: int, won: str, *, tasks: str = "t", strict_won: str | None = None, **other: object) -> Arm:
    policies = {"policy": result(won, tasks=tasks, strict_won=strict_won)}
    of_arm = {"setting": "now", "code": "c", "sft": f"sft{seed}", "commit": "abc1234", "training": TRAINING}
    return Arm(override=override, seed=seed, overrides={}, policies=policies, **{**of_arm, **other})


@pytest.fixture(autouse=True)
def all_are_of_today(monkeypatch: pytest.MonkeyPatch):
    """Knobs are compared in test_record.py."""

    def of_today(_plan, known, *, params):
        return {name: arm for name, arm in known.items() if arm.setting == "now"}

    monkeypatch.setattr(verdicts, "of_today", of_today)


def table_of(plan: Plan, arms: list[Arm]) -> Table:
    known = {f"{one.override}-seed{one.seed}": one for one in arms}
    return verdicts.make_table(plan, known, params="")


def rows(table: Table) -> dict[str, Row]:
    return {row.override.name: row for row in table.rows}


def test_a_planted_difference_is_found_under_seeds_that_lie_far_apart_and_equal_ones_are_not_told_apart():
    more = {"grpo": 0, "same": 0, "more": 30}
    arms = [arm(name, seed, noisy(seed, BASE[seed] + by, by=name)) for name, by in more.items() for seed in SEEDS]
    found = rows(table_of(plan_of("grpo", "same", "more"), arms))
    assert list(found) == ["grpo", "same", "more"]
    assert found["grpo"].measured[Measure.PLAIN].difference is None
    better = found["more"].measured[Measure.PLAIN].difference
    assert better.low > 0
    assert better.estimate == pytest.approx(0.15, abs=0.03)
    same = found["same"].measured[Measure.PLAIN].difference
    assert same.low < 0 < same.high
    low, high = found["more"].measured[Measure.PLAIN].success[1:]
    assert high - low > 0.3, "a mean alone counts the seeds, too"


def test_p_values_are_corrected_for_the_number_of_overrides():
    """Two of them: the smaller p-value counts twice."""
    more = {"grpo": 0, "same": 0, "more": 30}
    arms = {n: [arm(n, seed, noisy(seed, BASE[seed] + by, by=n)) for seed in SEEDS] for n, by in more.items()}
    found = rows(table_of(plan_of(*more), [one for own in arms.values() for one in own]))
    outcomes = {n: [one.policies["policy"].outcomes(Measure.PLAIN) for one in own] for n, own in arms.items()}
    alone = paired_difference(outcomes["grpo"], outcomes["more"]).p_value
    assert found["more"].measured[Measure.PLAIN].difference.p_value == pytest.approx(2 * alone)


def test_strict_success_has_a_verdict_of_its_own():
    arms = [arm("grpo", seed, digits(BASE[seed])) for seed in SEEDS]
    arms += [
        arm("loose", seed, noisy(seed, BASE[seed] + 40, by="loose"), strict_won=digits(BASE[seed])) for seed in SEEDS
    ]
    measured = rows(table_of(plan_of("grpo", "loose"), arms))["loose"].measured
    assert measured[Measure.PLAIN].difference.low > 0
    assert measured[Measure.STRICT].difference.estimate == 0.0


def test_arms_from_another_sft_model_are_compared_as_settings_and_less_surely():
    arms = [arm("grpo", seed, digits(BASE[seed])) for seed in SEEDS]
    others = [arm("rloo", seed, digits(BASE[seed] + 10)) for seed in SEEDS]
    paired = rows(table_of(plan_of("grpo", "rloo"), [*arms, *others]))["rloo"].measured[Measure.PLAIN].difference
    others = [one.model_copy(update={"sft": "another"}) for one in others]
    apart = rows(table_of(plan_of("grpo", "rloo"), [*arms, *others]))["rloo"].measured[Measure.PLAIN].difference
    assert apart.estimate == pytest.approx(paired.estimate)
    assert apart.high - apart.low > 5 * (paired.high - paired.low)


@pytest.mark.parametrize("other", [{"code": "another"}, {"tasks": "others"}])
def test_arms_of_other_code_or_tasks_are_compared_with_none(other):
    arms = [arm("grpo", seed, digits(BASE[seed])) for seed in SEEDS]
    arms += [arm("rloo", seed, digits(BASE[seed]), **other) for seed in SEEDS]
    table = table_of(plan_of("grpo", "rloo"), arms)
    assert rows(table)["rloo"].measured[Measure.PLAIN].difference is None
    assert [note.partition(":")[0] for note in table.notes] == ["rloo"]


def test_records_with_other_knobs_are_left_out_and_named():
    arms = [arm("grpo", seed, digits(20)) for seed in (1, 2)]
    arms += [arm("rloo", 1, digits(20)), arm("rloo", 2, digits(20), setting="older")]
    table = table_of(plan_of("grpo", "rloo"), arms)
    assert list(rows(table)["rloo"].arms) == [1]
    assert table.notes == ["left out, because their knobs are others today: rloo-seed2"]


def test_the_gain_over_the_sft_model_is_of_pairs():
    arms = []
    for seed in SEEDS:
        one = arm("grpo", seed, digits(BASE[seed] + 20))
        arms.append(one.model_copy(update={"policies": {"sft": result(digits(BASE[seed])), **one.policies}}))
    gain = rows(table_of(plan_of("grpo"), arms))["grpo"].measured[Measure.PLAIN].gain
    assert gain.estimate == pytest.approx(0.1)
    assert gain.low > 0


def test_without_the_baseline_there_is_no_table():
    for arms in ([], [arm("rloo", 1, digits(20))], [arm("grpo", 1, digits(20), setting="older")]):
        with pytest.raises(DataError, match="no run of grpo with the knobs of today"):
            table_of(plan_of("grpo", "rloo"), arms)


def test_the_page_says_who_sees_an_expert_who_is_a_control_and_how_the_training_went():
    plan = plan_of("grpo", "luffy", "coin")
    kinds = {"luffy": {"is_oracle": True}, "coin": {"is_control": True}}
    overrides = [one.model_copy(update=kinds.get(one.name, {})) for one in plan.overrides]
    plan = plan.model_copy(update={"overrides": overrides})
    page = table_markdown(table_of(plan, [arm(one.name, s, digits(50)) for one in overrides for s in (1, 2)]), plan)
    lines = page.splitlines()
    assert [line.split(" | ")[:3] for line in lines if line.startswith("| `") and "(" in line][:3] == [
        ["| `grpo`", "", "2"],
        ["| `luffy`", "an expert", "2"],
        ["| `coin` (control)", "", "2"],
    ]
    assert "25.0 % (" in page
    assert "| 20 | 60,000 | 1,280 | 160 | 32 % → 28 % |" in page
    assert "15 % → 25 %" in page
    assert "- `luffy`: what luffy does" in page
    assert "corrected for 2 overrides" in page
    assert "abc1234" in page
    widths = [line.count("|") for line in lines if line.startswith("|")]
    assert sorted(set(widths)) == [15, 19], "every row has the cells of its titles"


def test_harm_is_the_mean_over_seeds_of_what_was_sampled_and_is_left_out_where_no_world_has_any():
    def with_cost(override: str, seed: int, rate: float) -> Arm:
        made = arm(override, seed, digits(BASE[seed]))
        cost = {"rate": 0.5, "ci_low": 0.4, "ci_high": 0.6, "sampled_rate": rate, "num_tasks": NUM_TASKS}
        harmful = result(digits(BASE[seed])).model_copy(update={"costs": {"told_other": CostRate(**cost)}})
        return made.model_copy(update={"policies": {"policy": harmful}})

    plan = plan_of("base", "careful")
    rates = {"base": (0.2, 0.4), "careful": (0.0, 0.02)}
    known = {
        f"{name}{seed}": with_cost(name, seed, rate) for name, own in rates.items() for seed, rate in enumerate(own, 1)
    }
    text = table_markdown(make_table(plan, known, params=""), plan)
    assert "| override | told other |" in text
    assert "| `base` | 30.0 % (20.0 … 40.0 %) |" in text
    assert "| `careful` | 1.0 % (0.0 … 2.0 %) |" in text
    known = {f"{name}{seed}": arm(name, seed, digits(BASE[seed])) for name in rates for seed in (1, 2)}
    assert "Harm" not in table_markdown(make_table(plan, known, params=""), plan)
