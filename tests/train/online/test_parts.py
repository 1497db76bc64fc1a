"""Every part that params.yaml chooses reaches the weights, and is gone on with after a kill; what
the plays on dev tell, and the budget."""

import numpy as np
import pytest
import yaml
from tiny import tiny_model
from tiny_runs import Death, digest_of, run_here, train

from posttrain.train.online.params import OnlineParams

MEAN = "baseline: {type: group_mean}, scale: {type: none}, drop: none"
SPREAD = {"type": "spread", "labels": [], "floor": 0.1, "decay": 0.5}
BY_BASELINE = "scale: {type: none}, drop: none, equal_groups: {type: by_baseline}"
CHOICES = {
    "no scale": f"credit: {{type: episode, baseline: {{type: group_mean}}, {BY_BASELINE}}}",
    "virtual best": f"credit: {{type: episode, baseline: {{type: virtual_best, best: 1.0}}, {BY_BASELINE}}}",
    "entropy of equal groups": f"credit: {{type: episode, {MEAN}, equal_groups: {{type: by_entropy, alpha: 0.1}}}}",
    "a coin": f"credit: {{type: episode, {MEAN}, equal_groups: {{type: by_coin, size: 0.3}}}}",
    "scores": "credit: {type: scores, floor: 1.0e-4}",
    "discounted": f"credit: {{type: discounted, gamma: 0.5, {MEAN}}}",
    "states": f"credit: {{type: states, gamma: 0.9, weight: 1.0, state_baseline: {{type: group_mean}}, {MEAN}}}",
    "critic apart": "credit: {type: gae, over: tokens, gamma: 1.0, lam: 0.9, scale: {type: none}, "
    "critic: {trunk: apart, lr: 1.0e-2, updates_per_step: 2, warmup_steps: 1}}",
    "critic on the trunk": "credit: {type: gae, over: turns, gamma: 1.0, lam: 0.9, scale: {type: none}, "
    "critic: {trunk: shared, lr: 1.0e-2, updates_per_step: 1, warmup_steps: 0}}",
    "branches": "credit: {type: branch_values, branches: 2, at: {type: turns}, scale: {type: none}}",
    "branches where uncertain": "credit: {type: branch_values, branches: 3, "
    "at: {type: entropy, share: 0.4, tokens: 1}, scale: {type: batch_std, floor: 1.0e-4}}",
    "expert": "join: {type: expert, count: 1, gamma: 0.1}",
    "imitation": "{join: {type: expert, count: 1, gamma: null}, credit: {type: imitation}}",
    "hints": "join: {type: hints, share: 0.5, start: 1.0, step: 0.25}",
    "kl": "kl: {type: loss, weight: 0.1}",
    "kl, unbiased": "kl: {type: loss, weight: 0.1, estimator: unbiased}",
    "kl, k2": "kl: {type: adaptive, weight: 0.1, target: 0.01, horizon: 2, estimator: k2}",
    "adaptive kl": "kl: {type: adaptive, weight: 0.1, target: 0.01, horizon: 2}",
    "entropy bonus": "entropy_bonus: 0.05",
    "budget": "max_generated_tokens: 150",
    "ahead": "max_staleness: 1",
} | {
    order: f"sampling: {{order: {{type: {order}, {knobs}}}, max_refills: 1}}"
    for order, knobs in {
        "spread": "labels: [difficulty], floor: 0.1, decay: 0.5",
        "greso": "easy_share: 0.2, hard_share: 0.2, start: 0.5",
        "pools": "low: 0.1, high: 0.4, shares: {hard: 0.3, middle: 0.4, easy: 0.3}, decay: 0.5",
        "horizon": "label: difficulty, promote_at: 0.2, decay: 0.5",
    }.items()
}


def chosen(name):
    return yaml.safe_load(CHOICES[name])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Digest of the weights, and the metrics."""
    model, lines = run_here("online", tmp_path_factory.mktemp("plain"), max_steps=5, tasks_per_step=4)
    return digest_of(model), lines


@pytest.mark.parametrize("name", CHOICES)
def test_each_part_reaches_the_weights_and_tells_the_same_metrics(tmp_path, plain, name):
    model, lines = run_here("online", tmp_path, max_steps=5, tasks_per_step=4, **chosen(name))
    digest, usual = plain
    assert digest_of(model) != digest
    assert set(lines[1]) == set(usual[1])
    assert all(np.isfinite(value) for line in lines for value in line.values())


@pytest.mark.parametrize(
    "name",
    [
        "spread",
        *(
            pytest.param(name, marks=pytest.mark.needs_killed)
            for name in ("hints", "ahead", "branches where uncertain")
        ),
    ],
)
def test_parts_that_remember_are_gone_on_with_after_a_kill(tmp_path, name):
    code, expected = train("online", tmp_path / "whole", tasks_per_step=4, **chosen(name))
    assert code == 0
    train("online", tmp_path / "cut", Death(after=6), tasks_per_step=4, **chosen(name))
    assert train("online", tmp_path / "cut", tasks_per_step=4, **chosen(name)) == (0, expected)


def test_a_policy_waits_for_its_critic(tmp_path):
    _, lines = run_here("online", tmp_path, max_steps=4, tasks_per_step=4, **chosen("critic apart"))
    assert [line["updates"] for line in lines] == [0, 1, 1, 1]
    assert all(line["value_loss"] > 0 for line in lines)


@pytest.mark.needs_large
def test_a_policy_learns_from_a_critic(tmp_path):
    more = {"max_steps": 80, "tasks_per_step": 4, "group_size": 8}
    credit = chosen("critic apart")["credit"]
    critic = credit["critic"] | {"lr": 3e-3, "updates_per_step": 4}  # at 1e-2 it follows the last step's returns
    _, lines = run_here("online", tmp_path, **more, credit=credit | {"critic": critic})
    rewards = [line["reward_mean"] for line in lines]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:5]) + 0.1
    assert np.mean([line["explained_variance"] for line in lines[-10:]]) > 0.1


@pytest.mark.parametrize(
    ("join", "how"),
    [
        ("{type: expert, count: 1, gamma: 0.1}", {"max_steps": 12, "lr": 0.15}),
        pytest.param("{type: expert, count: 1, gamma: null}", {"max_steps": 60}, marks=pytest.mark.needs_large),
    ],
)
def test_an_expert_teaches_what_nobody_played(tmp_path, join, how):
    """Imitation alone, too: its words become what the agent writes."""
    credit = {"credit": {"type": "imitation"}} if "null" in join else {}
    more = {"tasks_per_step": 4, "join": yaml.safe_load(join), **how}
    _, lines = run_here("online", tmp_path, **more, **credit)
    assert np.mean([line["reward_mean"] for line in lines[-5:]]) > lines[0]["reward_mean"] + 0.15
    assert {line["joined"] for line in lines} == {4}


def test_what_joined_is_no_part_of_what_was_played(tmp_path):
    heard = []
    more = {"max_steps": 2, "tasks_per_step": 4, "on_step": lambda step, played, _: heard.append(len(played))}
    _, lines = run_here("online", tmp_path, join={"type": "expert", "count": 2, "gamma": 0.1}, **more)
    assert heard == [16, 16]
    assert lines[0]["generated_tokens"] == 16 * 2
    assert lines[0]["importance_max"] < 2, "an expert's tokens have no log-probability to compare"


def test_a_hint_is_read_and_not_learnt(tmp_path):
    heard = []
    more = {"max_steps": 1, "tasks_per_step": 4, "on_step": lambda step, played, _: heard.extend(played)}
    run_here("online", tmp_path, **more, **chosen("hints"))
    words = [sum(one.trajectory.mask) for one in heard]
    assert words == [1, 1, 2, 2] * 4
    assert all(one.trajectory.scores["first"] == 1 for one, count in zip(heard, words, strict=True) if count == 1)


def test_a_budget_of_tokens_ends_a_run_and_the_rate_falls_with_it(tmp_path):
    """Eight episodes of two words a step: 16 tokens."""
    _, lines = run_here("online", tmp_path, max_steps=100, max_generated_tokens=64)
    assert [line["generated_tokens"] for line in lines] == [16, 32, 48, 64]
    rates = [line["lr"] for line in lines]
    assert rates == pytest.approx([3e-2, 3e-2 * 3 / 4, 3e-2 / 2, 3e-2 / 4])


def test_what_branches_write_is_in_the_budget_and_not_learnt_from(tmp_path):
    """Eight episodes of two words a step, and two branches of one word for each."""
    more = {"max_steps": 100, "max_generated_tokens": 64, **chosen("branches")}
    heard = []
    _, lines = run_here("online", tmp_path, on_step=lambda step, played, _: heard.append(len(played)), **more)
    assert [line["generated_tokens"] for line in lines] == [32, 64]
    assert [(line["branches_played"], line["branches_lost"], line["branch_tokens"]) for line in lines] == [
        (16, 0, 16)
    ] * 2
    assert heard == [8, 8]
    assert [line["lr"] for line in lines] == pytest.approx([3e-2, 3e-2 / 2])


def test_dev_tasks_are_played_by_the_weights_that_play_the_step_and_by_the_last(tmp_path):
    dev = {"every_steps": 4, "num_tasks": 10, "keep": "last"}
    _, lines = run_here("online", tmp_path, max_steps=10, tasks_per_step=4, dev=dev)
    assert [line["step"] for line in lines if "dev_success" in line] == [1, 5, 9, 10]
    assert lines[0]["forgotten"] == 0.0


def test_the_best_weights_on_dev_are_kept(tmp_path):
    """Those of the first time: as good later is not better."""
    dev, digests = {"every_steps": 1, "num_tasks": 10, "keep": "best"}, []
    model = tiny_model()
    more = {"max_steps": 15, "tasks_per_step": 4, "dev": dev, "on_step": lambda *_: digests.append(digest_of(model))}
    _, lines = run_here("online", tmp_path, model, **more)
    found = [line["dev_strict_success"] for line in lines]
    assert found.index(max(found)) < 14
    assert digest_of(model) == digests[found.index(max(found))]


def test_a_divergence_in_the_loss_keeps_the_policy_near_its_start(tmp_path):
    _, free = run_here("online", tmp_path / "free", tasks_per_step=4)
    _, held = run_here("online", tmp_path / "held", tasks_per_step=4, kl={"type": "loss", "weight": 3.0})
    assert held[-1]["kl"] < free[-1]["kl"] / 2


def test_each_estimator_of_the_divergence_reaches_the_weights(tmp_path):
    """At a ratio of 1 k2 and the unbiased one have one gradient; in a second update they have
    not."""
    held = {"type": "loss", "weight": 3.0}
    more = {"tasks_per_step": 4, "updates_per_step": 2}
    digests = {
        name: digest_of(run_here("online", tmp_path / name, max_steps=3, kl=held | {"estimator": name}, **more)[0])
        for name in ("k3", "k2", "unbiased")
    }
    assert len(set(digests.values())) == 3
    unnamed, _ = run_here("online", tmp_path / "unnamed", max_steps=3, kl=held, **more)
    assert digest_of(unnamed) == digests["k3"]


def test_episodes_are_played_ahead_but_not_over_a_checkpoint_nor_plays_on_dev(tmp_path):
    dev = {"every_steps": 6, "num_tasks": 4, "keep": "last"}
    _, lines = run_here("online", tmp_path, max_staleness=1, dev=dev)
    assert [line["staleness"] for line in lines] == [0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {
                "max_staleness": 1,
                "sampling": {"order": SPREAD, "max_refills": 0},
            },
            "sampling.order is spread",
        ),
        ({"max_staleness": 1, "sampling": {"order": {"type": "uniform"}, "max_refills": 2}}, "max_refills is 2"),
        ({"max_staleness": 1, "join": {"type": "hints", "share": 0.5, "start": 0.5, "step": 0.5}}, "join is hints"),
        ({"credit": {"type": "imitation"}}, "nothing to imitate"),
        (chosen("critic apart") | {"join": {"type": "edits", "gamma": None}}, "what the policy itself earns"),
        (
            chosen("branches") | {"join": {"type": "edits", "gamma": None}},
            "branch_values and join edits: values are of",
        ),
        (chosen("branches") | {"max_staleness": 1}, "played by other weights than their episodes"),
        (chosen("branches") | {"sampling": {"order": {"type": "uniform"}, "max_refills": 2}}, "max_refills 2: groups"),
        (
            {"credit": {"type": "process_model", "weight": 1.0, "scale": {"type": "none"}}}
            | {"sampling": {"order": {"type": "uniform"}, "max_refills": 2}},
            "process_model and sampling.max_refills 2: groups",
        ),
        ({"objective": {"type": "clip", "low": 0.2, "high": 0.2}}, "updates_per_step is 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_go_together_is_refused_in_a_line(changes, said):
    values = yaml.safe_load(OnlineParams.example) | {"type": "online"} | changes
    with pytest.raises(ValueError, match=said):
        OnlineParams.model_validate(values)
