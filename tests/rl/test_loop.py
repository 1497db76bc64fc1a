"""The loop of learning online on a tiny model: it learns, tells every metric, moves nothing without
a signal, and each of its choices reaches the weights."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tiny import play_words, tiny_adapted_model, tiny_model, word_task
from tiny_runs import Death, digest_of, run_here, train

from posttrain.algorithms.rollouts import ScoredEpisode
from posttrain.rl.sampling.spread import Spread
from posttrain.rl.sampling.uniform import Uniform
from posttrain.types import StopReason

CLIP = {"type": "clip", "low": 0.2, "high": 0.2}
MEAN = {
    "type": "episode",
    "baseline": {"type": "group_mean"},
    "scale": {"type": "none"},
    "drop": "none",
    "equal_groups": {"type": "by_baseline"},
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


trained = partial(run_here, "online")


@pytest.mark.parametrize("more", [{}, {"updates_per_step": 3, "objective": CLIP}], ids=["one update", "three"])
def test_the_reward_rises_when_what_earned_more_becomes_likelier(tmp_path, more):
    _, lines = trained(tmp_path, max_steps=40, tasks_per_step=4, group_size=8, **more)
    rewards = [line["reward_mean"] for line in lines]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:5]) + 0.1


def test_every_step_writes_the_same_metrics(tmp_path):
    _, lines = trained(tmp_path, max_steps=3)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert len({frozenset(line) for line in lines}) == 1
    assert {"kl", "grad_norm", "updates", "clip_low", "clip_high", "importance_mean", "demonstration_loss"} <= {
        *lines[0]
    }
    assert lines[0]["kl"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_without_a_signal_the_weights_stay_bit_for_bit(tmp_path, monkeypatch, optimizer):
    """From step 5 on all rewards are equal. Muon's momentum alone would go on moving them."""
    digests = []

    def on_step(step, played, advantages):
        digests.append(digest_of(model))

    class Played:
        num = 0

    def play(own, task, seed):
        Played.num += 1
        played = play_words(own, task, seed)
        is_late = Played.num > 4 * 2 * 4  # steps of two groups of four
        return replace(played, trajectory=replace(played.trajectory, reward=0.2)) if is_late else played

    monkeypatch.setattr("tiny_runs.play_words", play)
    model = tiny_model()
    _, lines = trained(tmp_path, model, max_steps=9, optimizer=optimizer, on_step=on_step)
    assert len(set(digests[:5])) > 1
    assert len({*digests[4:], digest_of(model)}) == 1
    assert [line["updates"] for line in lines][4:] == [0] * 5
    assert [line["grad_norm"] for line in lines][4:] == [0.0] * 5


def test_a_step_is_used_as_often_as_it_is_told_and_then_the_clip_acts(tmp_path):
    _, once = trained(tmp_path / "once", max_steps=4, tasks_per_step=4)
    _, often = trained(tmp_path / "often", max_steps=4, tasks_per_step=4, updates_per_step=4, objective=CLIP)
    assert {line["updates"] for line in once} <= {0, 1}
    assert 4 in {line["updates"] for line in often}
    assert max(line["clip_high"] + line["clip_low"] for line in once) == 0
    assert max(line["clip_high"] + line["clip_low"] for line in often) > 0


@pytest.mark.parametrize("other", [{"low": 0.01, "high": 0.01}, {"low": 0.9, "high": 9.0}])
def test_the_width_of_the_clip_reaches_the_weights(tmp_path, other):
    more = {"max_steps": 4, "tasks_per_step": 4, "updates_per_step": 4}
    one, _ = trained(tmp_path / "one", objective=CLIP, **more)
    two, _ = trained(tmp_path / "two", objective=CLIP | other, **more)
    assert digest_of(one) != digest_of(two)


@pytest.mark.parametrize(
    "change",
    [
        {"credit": MEAN},
        {"credit": MEAN | {"baseline": {"type": "virtual_best", "best": 1.0}}},
        {"credit": MEAN | {"baseline": {"type": "task_mean", "decay": 0.5}}},
    ],
    ids=str,
)
def test_each_choice_reaches_the_weights(tmp_path, change):
    plain, _ = trained(tmp_path / "plain", max_steps=4, tasks_per_step=4, group_size=8)
    other, _ = trained(tmp_path / "other", max_steps=4, tasks_per_step=4, group_size=8, **change)
    assert digest_of(plain) != digest_of(other)


def test_a_lost_episode_teaches_nothing_and_counts_for_nothing(tmp_path, monkeypatch):
    def sometimes_lost(model, task, seed):
        played = play_words(model, task, seed)
        lost = replace(
            played.trajectory, stop_reason=StopReason.ENGINE_LOST, token_ids=(), mask=(), logprobs=(), reward=9.0
        )
        return ScoredEpisode(lost) if seed % 4 == 0 else played

    heard = []
    monkeypatch.setattr("tiny_runs.play_words", sometimes_lost)
    _, lines = trained(
        tmp_path,
        max_steps=12,
        on_step=lambda step, played, advantages: heard.extend(zip(played, advantages, strict=True)),
    )
    assert 0 < np.mean([line["lost"] for line in lines]) < 0.6
    assert all(line["reward_mean"] <= 1 for line in lines), "the 9 of a lost one is in no mean"
    assert {advantage for one, advantage in heard if one.is_lost} == {0.0}


def test_adapters_are_trained_without_dropout_and_are_their_own_reference(tmp_path):
    model = tiny_adapted_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    _, lines = trained(tmp_path, model, max_steps=3, tasks_per_step=4, group_size=8)
    changed = [name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])]
    assert changed
    assert all("lora" in name for name in changed)
    assert max(line["logprob_gap_max"] for line in lines) < 1e-5, (
        "dropout would tell other log-probs than those drawn from"
    )


def test_a_step_plays_on_until_it_has_groups_that_differ_and_learns_from_these_alone(tmp_path):
    bounded = {"order": {"type": "uniform"}, "max_refills": 5}
    _, plain = trained(tmp_path / "plain", max_steps=4, tasks_per_step=4)
    _, refilled = trained(tmp_path / "refilled", max_steps=4, tasks_per_step=4, sampling=bounded)
    assert {line["groups_played"] for line in plain} == {4}
    assert max(line["frac_equal_trained"] for line in plain) > 0
    assert max(line["groups_played"] for line in refilled) > 4
    assert {line["frac_equal_trained"] for line in refilled} == {0.0}
    assert all(line["groups_trained"] <= 4 for line in refilled)
    assert all(line["groups_trained"] == 4 or line["groups_played"] > 8 for line in refilled)


def test_a_step_that_finds_no_group_that_differs_ends_at_its_bound_and_moves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tiny_runs.play_words", lambda model, task, seed: play_words(model, task, 7))
    before = digest_of(tiny_model())
    bounded = {"order": {"type": "uniform"}, "max_refills": 2}
    model, lines = trained(tmp_path, max_steps=2, sampling=bounded)
    assert [(line["groups_played"], line["groups_trained"]) for line in lines] == [(6, 0)] * 2
    assert digest_of(model) == before


def test_tasks_whose_groups_were_equal_are_chosen_less_often_and_from_a_state_alike():
    tasks = [word_task(x, y) for x in range(4, 14) for y in range(4, 14)]
    sampler, other = (Spread(tasks, seed=3, floor=0.05, decay=0.5) for _ in range(2))
    for place, task in enumerate(tasks):
        sampler.observe(task.task_id, has_spread=place % 2 == 0)
    other.restore(sampler.state())
    drawn = [sampler.choose(10) for _ in range(30)]
    assert drawn == [other.choose(10) for _ in range(30)]
    assert all(len({task.task_id for task in some}) == 10 for some in drawn)
    share = np.mean([tasks.index(task) % 2 == 0 for some in drawn for task in some])
    assert 0.85 < share < 1.0  # 1 / (1 + 0.05) where tasks are drawn one at a time


def test_tasks_are_chosen_in_shuffled_passes_and_gone_on_with_from_a_state():
    tasks = [word_task(x, 9) for x in range(4, 9)]
    whole, first, second = (Uniform(tasks, seed=3) for _ in range(3))
    expected = whole.choose(12)
    found = first.choose(7)
    second.restore(first.state())
    assert found + second.choose(5) == expected
    assert {task.task_id for task in expected[:5]} == {task.task_id for task in tasks}


@pytest.mark.parametrize(
    "baseline", [{"type": "task_mean", "decay": 0.5}, {"type": "weighted", "decay": 0.5, "batch_count": 2.0}]
)
def test_what_remembers_is_gone_on_with_after_a_kill(tmp_path, baseline):
    sampling = {"order": {"type": "spread", "floor": 0.1, "decay": 0.5}, "max_refills": 1}
    credit = MEAN | {"baseline": baseline}
    _, expected = train("online", tmp_path / "whole", credit=credit, sampling=sampling)
    train("online", tmp_path / "cut", Death(after=6), credit=credit, sampling=sampling)
    assert train("online", tmp_path / "cut", credit=credit, sampling=sampling) == (0, expected)
