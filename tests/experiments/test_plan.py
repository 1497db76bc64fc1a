"""Experiment files: every one of `experiments/` can be run, and what is wrong in one is refused
before anything runs."""

from pathlib import Path

import pytest
import yaml

from posttrain.experiments.plan import Plan, read_plan, variants
from posttrain.runtime.exits import ConfigurationError

SHARED = """
base: {train_policy.algorithm: {type: online, average: tokens, sampling: {max_refills: 0}}}
overrides:
  - {name: grpo}
  - {name: refills, set: {train_policy.algorithm.sampling.max_refills: 3}}
"""
PLAN = "name: small\ninclude: shared.yaml\nbaseline: grpo\nseeds: [1]\nset: {train_policy.algorithm.max_steps: 60}\n"


@pytest.fixture(scope="module")
def params(repository: Path) -> str:
    return (repository / "params.yaml").read_text(encoding="utf-8")


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    (tmp_path / "shared.yaml").write_text(SHARED)
    (tmp_path / "small.yaml").write_text(PLAN)
    return tmp_path / "small.yaml"


def test_every_override_of_every_file_is_a_params_yaml_that_is_accepted(repository: Path, params: str):
    files = sorted(file for file in (repository / "experiments").glob("*.yaml") if file.stem not in ("methods", "demo"))
    assert {file.stem for file in files} >= {"seeds", "hard", "hard_long", "default", "resampling", "coreset"}
    for file in files:
        plan = read_plan(file, (), ())
        assert plan.name in ("", file.stem)
        found = variants(plan, params, only=[one.name for one in plan.overrides])
        assert len({yaml.safe_dump([dict(one.knobs)]) for one in found}) == len(found), "no two experiments are one"


def knobs_of(plan: Plan, params: str) -> dict[str, dict]:
    return {one.override: dict(one.knobs) for one in variants(plan, params)}


def test_a_key_below_another_is_set_inside_of_it_and_nothing_else_changes(plan_file: Path, repository: Path):
    plan = read_plan(plan_file, (), ())
    params = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    whole = params["train_policy"]["algorithm"]
    text = yaml.safe_dump(params)
    plan = plan.model_copy(update={"base": {"train_policy.algorithm": {**whole, "sampling": whole["sampling"]}}})
    found = knobs_of(plan, text)
    assert found["grpo"] == {"seed": 1, "train_policy.algorithm": {**whole, "max_steps": 60}}
    sampling = {**whole["sampling"], "max_refills": 3}
    assert found["refills"]["train_policy.algorithm"] == {**whole, "max_steps": 60, "sampling": sampling}


def test_seed_by_seed_with_the_names_of_the_plan_and_the_override(repository: Path, params: str):
    plan = read_plan(repository / "experiments" / "hard.yaml", (), (3, 5))
    found = variants(plan, params, only=["grpo", "adamw"])
    names = ["hard-grpo-seed3", "hard-adamw-seed3", "hard-grpo-seed5", "hard-adamw-seed5"]
    assert [one.name for one in found] == names
    assert found[0].knobs == {**found[2].knobs, "seed": 3}
    assert {one.override for one in variants(plan, params)} == set(plan.run)


def test_an_override_may_have_seeds_of_its_own(repository: Path, params: str):
    found = variants(read_plan(repository / "experiments" / "seeds.yaml", (), ()), params)
    assert [one.name for one in found if one.override == "base"] == [f"seeds-base-seed{seed}" for seed in range(1, 6)]
    assert [one.name for one in found if one.override == "dpo"] == ["seeds-dpo-seed1"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("baseline: grpo", "baseline: gpro", "no override 'gpro'; there are grpo, refills. Did you mean 'grpo'"),
        ("seeds: [1]", "seeds: [-1]", "negative"),
        ("seeds: [1]", "seed: [1]", "seed"),
        ("include: shared.yaml", "include: none.yaml", "none.yaml"),
        ("seeds: [1]", "seeds: [1]\ntargets: [evaluate@sft]", "verdicts are on policy .* set policy to sft"),
        ("algorithm.max_steps: 60", "algorithm.sampling.max_refills: 1", "refills sets .*max_refills.* for all"),
        ("algorithm.max_steps: 60", "algorithm.smapling.max_refills: 1", "has no section smapling"),
    ],
)
def test_a_wrong_plan_is_refused(plan_file: Path, params: str, old: str, new: str, reason: str):
    plan_file.write_text(PLAN.replace(old, new))
    with pytest.raises(ConfigurationError, match=reason):
        variants(read_plan(plan_file, (), ()), params)


def test_an_override_that_is_none_of_the_plans_is_refused(repository: Path, params: str):
    plan = read_plan(repository / "experiments" / "hard.yaml", (), ())
    with pytest.raises(ConfigurationError, match=r"no override 'gpro'.*Did you mean 'grpo'"):
        variants(plan, params, only=["gpro"])
