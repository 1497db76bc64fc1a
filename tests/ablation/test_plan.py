"""Two files become experiments, and what is wrong in them is refused before anything runs."""

from pathlib import Path

import pytest
import yaml

from benchmarks.arms import apply_overrides
from posttrain.ablation.plan import (
    METHODS,
    REGIMES,
    Study,
    arms,
    overrides,
    parse_methods,
    parse_seeds,
    read_study,
)
from posttrain.exits import ConfigurationError
from posttrain.params import parse_params
from posttrain.pipeline.experiment_plan import read_plan, variants, with_knobs


@pytest.fixture(scope="module")
def study(repository) -> Study:
    return read_study(repository)


@pytest.fixture(scope="module")
def params(repository) -> str:
    return (repository / "params.yaml").read_text(encoding="utf-8")


def edited(repository: Path, root: Path, file: Path, old: str, new: str) -> Path:
    """A tree that has both files, and in one of them another text."""
    for one in (METHODS, REGIMES):
        (root / one).parent.mkdir(parents=True, exist_ok=True)
        text = (repository / one).read_text(encoding="utf-8")
        assert one != file or text.count(old) == 1
        (root / one).write_text(text.replace(old, new) if one == file else text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    "regime", ["default", *(pytest.param(name, marks=pytest.mark.needs_large) for name in ("hard", "hard_long"))]
)
def test_every_method_is_a_params_yaml_that_is_accepted_in_every_regime(study, params, regime):
    found = arms(study, regime, list(study.methods), [1], params)
    assert [arm.method for arm in found] == list(study.methods)
    algorithms = [arm.variant.knobs["train_policy.algorithm"] for arm in found]
    assert len({yaml.safe_dump([one.variant.knobs]) for one in found}) == len(found), "no two methods are one"
    for key, value in study.regimes[regime].budget.items():
        assert all(algorithm[key] == value for algorithm in algorithms)


def test_seed_by_seed_the_methods_differ_in_train_policy_alone(study, params):
    found = arms(study, "hard", ["grpo", "adamw"], [3, 5], params)
    assert [arm.variant.branch for arm in found] == [
        "exp/hard-grpo-seed3",
        "exp/hard-adamw-seed3",
        "exp/hard-grpo-seed5",
        "exp/hard-adamw-seed5",
    ]
    grpo, adamw = found[0].variant.knobs, found[1].variant.knobs
    assert {key: value for key, value in adamw.items() if key not in grpo} == {
        "train_policy.optimizer": "adamw",
        "train_policy.lr": 5.0e-4,
    }
    assert {key: adamw[key] for key in grpo} == grpo
    assert found[0].variant.knobs == {**found[2].variant.knobs, "seed": 3}


def test_a_method_changes_the_part_that_it_names_and_no_other(study):
    grpo, rloo = (one["set"]["train_policy.algorithm"] for one in overrides(study, "hard", ["grpo", "rloo"]))
    assert rloo["credit"] == {**grpo["credit"], "baseline": {"type": "leave_one_out"}, "scale": {"type": "none"}}
    assert {**rloo, "credit": None} == {**grpo, "credit": None}


def test_a_clone_a_branch_and_the_flow_run_the_same_params(study, params, repository, tmp_path):
    """The local runner writes a clone's file, the flow a branch's: they are read alike."""
    methods = ["grpo", "ngrpo", "ppo"]
    found = arms(study, "hard", methods, [1, 2], params)
    planned = {one.name: one for one in variants(read_plan(None, overrides(study, "hard", methods), [1, 2]), params)}
    assert planned == {arm.variant.name: arm.variant for arm in found}
    for arm in found:
        file = tmp_path / "params.yaml"
        file.write_text(params, encoding="utf-8")
        apply_overrides(file, arm.variant.knobs)
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert content == yaml.safe_load(with_knobs(params, arm.variant))
        assert parse_params(content, source="a clone").seed == arm.seed


@pytest.mark.parametrize(
    ("regime", "methods", "seeds", "reason"),
    [
        ("hrad", ["grpo"], [1], r"no regime 'hrad'; there are default, hard, hard_long. Did you mean 'hard'"),
        ("hard", ["gpro"], [1], r"no method 'gpro'; there are grpo, .* Did you mean 'grpo'"),
        ("hard", [], [1], "no method is given"),
        ("hard", ["grpo"], [], "no seed is given"),
    ],
)
def test_what_there_is_none_of_is_refused(study, params, regime, methods, seeds, reason):
    with pytest.raises(ConfigurationError, match=reason):
        arms(study, regime, methods, seeds, params)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("average: max_tokens}", "average: max_token}", "dr_grpo-seed1.*\n.*average"),
        ("algorithm.sampling.max_refills: 3", "algorithm.sampling.refills: 3", "no such key in `base`"),
        ("algorithm.sampling.max_refills: 3", "algorithm.smapling.max_refills: 3", "no section algorithm.smapling"),
        ("algorithm.sampling.max_refills: 3", "algorithm.group_size: 16", "dapo sets .*group_size is the budget's"),
        ("algorithm.updates_per_step: 2  # at", "algorithm.updates_per_step: 1  # at", "updates_per_step is 1"),
        ("{optimizer: adamw,", "{optimiser: adamw,", "optimiser"),
    ],
)
def test_a_method_that_is_not_accepted_is_refused_by_its_name(repository, params, tmp_path, old, new, reason):
    study = read_study(edited(repository, tmp_path, METHODS, old, new))
    with pytest.raises(ConfigurationError, match=reason):
        arms(study, "hard", list(study.methods), [1], params)


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        (METHODS, "baseline: grpo  #", "baseline: gpro  #", "no method 'gpro'"),
        (METHODS, "methods: [grpo, ngrpo,", "methods: [grpo, nrgpo,", "no method 'nrgpo'"),
        (METHODS, "about: no deviation, and", "abuot: no deviation, and", "methods.dr_grpo"),
        (REGIMES, "max_generated_tokens: 60000", "max_generated_tokens: 0500", "is not|reads this as"),
        (REGIMES, "  about: params.yaml as it is", "  bout: x", "regimes.yaml cannot be read"),
    ],
)
def test_a_file_that_says_something_else_is_refused(repository, tmp_path, file, old, new, reason):
    with pytest.raises(ConfigurationError, match=reason):
        read_study(edited(repository, tmp_path, file, old, new))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"methods\.yaml cannot be read"):
        read_study(tmp_path)


def test_seeds_and_methods_are_written_as_a_person_does(study):
    assert parse_seeds("1-3,7") == [1, 2, 3, 7]
    assert parse_methods(study, "grpo, rloo") == ["grpo", "rloo"]
    assert parse_methods(study, "all") == list(study.methods)
    for text in ("", "a", "1-", "-1", "1..3"):
        with pytest.raises(ConfigurationError, match="no seeds"):
            parse_seeds(text)
