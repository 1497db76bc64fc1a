"""Rounds of self-improvement: the experiments that they are, when they end, and their table."""

import pytest
import yaml

from posttrain.experiments.evolution import Evolution, dev_curve, read_evolution, rounds_markdown
from posttrain.report.arms import Arm
from posttrain.runtime.exits import ConfigurationError

FILE = """
name: better
rounds: 3
seeds: [1, 2]
set: {train_policy.lr: 4.0e-3}
round:
  train_policy.replay_buffer: {size: 64, keep: uniform}
  train_policy.start: earlier_run
  train_policy.algorithm: %s
beside: [{name: plain, set: {}}]
"""


@pytest.fixture
def params(repository):
    return (repository / "params.yaml").read_text(encoding="utf-8")


@pytest.fixture
def evolution(repository, tmp_path):
    hard = yaml.safe_load((repository / "experiments/evolve/hard.yaml").read_text())
    file = tmp_path / "better.yaml"
    file.write_text(FILE % hard["round"]["train_policy.algorithm"])
    return read_evolution(file)


def test_a_round_begins_from_the_one_before_on_its_own_part_of_the_tasks(evolution, params):
    plan, chosen = evolution.chosen(params)
    assert plan.baseline == "plain"
    found = {one.name: one for one in chosen}
    assert {name: one.earlier for name, one in found.items()} == {
        f"better-{arm}-seed{seed}": earlier and f"better-{earlier}-seed{seed}"
        for arm, earlier in (("plain", ""), ("round1", ""), ("round2", "round1"), ("round3", "round2"))
        for seed in (1, 2)
    }
    knobs = [found[f"better-round{number}-seed1"].knobs for number in (1, 2)]
    assert [one["train_policy.task_part"] for one in knobs] == [{"part": 1, "of": 3}, {"part": 2, "of": 3}]
    assert [one["train_policy.start"] for one in knobs] == ["sft", "earlier_run"]
    assert len(evolution.chosen(params, [7])[1]) == 4


def test_the_file_of_the_docs_is_one(repository, params):
    plan, chosen = read_evolution(repository / "experiments/evolve/hard.yaml").chosen(params)
    assert [one.name for one in plan.overrides] == ["grpo", "round1", "round2", "round3", "round4"]
    assert len(chosen) == 5


def test_an_included_files_knobs_come_first(repository, params, tmp_path):
    toy = yaml.safe_load((repository / "experiments/evolve/toy.yaml").read_text())
    included = str(repository / "experiments/evolve" / toy["include"])
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(toy | {"include": included, "set": {"world.num_rl_tasks": 2560}}))
    first = read_evolution(file).chosen(params)[1][0].knobs
    demo = yaml.safe_load((repository / "experiments/demo.yaml").read_text())["set"]
    assert first["agent.max_turns"] == demo["agent.max_turns"]
    assert first["world"] == demo["world"] | {"num_rl_tasks": 2560}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name: a\nround: {}\n", "rounds"),
        ("name: a\nrounds: 0\nround: {}\n", "greater than or equal to 1"),
        ("name: a\nrounds: 2\nround: {}\nepochs: 3\n", "epochs"),
        ("[1]", "no rounds can be read"),
        ("name: a\nrounds: 2\nround: {}\ntargets: [evaluate@sft]\n", "targets: unknown key"),
        ("{name: a, roundz: 3, round: {}}", "roundz: unknown key. Did you mean 'round'"),
    ],
)
def test_another_file_is_refused(text, why, tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=why):
        read_evolution(file)


def test_the_tasks_of_a_round_are_no_knob_of_the_file(params):
    given = Evolution(name="a", rounds=2, round={"train_policy.task_part": {"part": 1, "of": 2}})
    with pytest.raises(ConfigurationError, match=r"train_policy\.task_part is set by the rounds"):
        given.chosen(params)


@pytest.mark.parametrize(
    ("dev", "tokens", "goes_on"),
    [
        ([0.3], [10], True),
        ([0.3, 0.3], [10, 10], False),  # no higher than before
        ([0.3, 0.2], [10, 10], False),
        ([0.3, 0.4], [10, 10], True),
        ([0.3, 0.4], [10, 90], False),  # the tokens are used up
        ([0.3, 0.4, 0.5, 0.6], [1, 1, 1, 1], False),  # all rounds
    ],
)
def test_when_another_round_is_played(dev, tokens, goes_on):
    assert Evolution(name="a", rounds=4, round={}, max_generated_tokens=100).goes_on(dev, tokens) is goes_on


def test_patience_bears_so_many_rounds_without_a_gain():
    patient = Evolution(name="a", rounds=9, round={}, patience=2)
    assert patient.goes_on([0.4, 0.3], [1, 1])
    assert not patient.goes_on([0.4, 0.3, 0.4], [1, 1, 1])


def arm(seed, dev, tokens, won):
    policy = {"success_rate": 0.5, "ci_low": 0.4, "ci_high": 0.6, "strict_success_rate": 0.5, "strict_ci_low": 0.4}
    policy |= {"strict_ci_high": 0.6, "num_tasks": 4, "won": won, "strict_won": won, "sampled_won": " ".join(won)}
    training = {"steps": 1, "generated_tokens": tokens, "rollouts": 1, "groups": 0, "means": {}, "last": {}}
    training |= {"dev_first": {}, "dev_last": {"dev_strict_success": dev}, "seconds": None}
    about = {"override": "round1", "overrides": {}, "setting": "", "code": "", "sft": "", "commit": ""}
    return Arm.model_validate({**about, "seed": seed, "policies": {"policy": policy}, "training": training})


def test_the_table_has_means_over_seeds_and_reads_other_arms_at_as_many_tokens():
    rounds = [[arm(1, 0.2, 100, "1000"), arm(2, 0.4, 300, "1100")], [arm(1, 0.5, 100, "1111")]]
    text = rounds_markdown(rounds, {"grpo": [[(0, 0.1), (400, 0.3)], [(0, 0.3), (400, 0.3)]], "lost": []})
    rows = [line for line in text.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert rows == [
        "| 1 | 2 | 200 | 30.0 % | 37.5 % | 37.5 % | 25.0 % |",
        "| 2 | 1 | 200 | 50.0 % | 100.0 % | 100.0 % | 25.0 % |",
    ]
    assert "line [30.0, 50.0]" in text


def test_a_curve_has_a_point_for_each_play_of_dev_tasks():
    lines = [
        {"step": 0, "dev_strict_success": 0.1},
        {"step": 1, "generated_tokens": 50},
        {"step": 2, "generated_tokens": 90, "dev_strict_success": 0.2},
    ]
    assert dev_curve(lines) == [(0.0, 0.1), (90.0, 0.2)]
