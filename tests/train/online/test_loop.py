"""The loop of learning online on a tiny model: it learns, moves nothing without a signal, corrects
for what drew the tokens, and each of its choices reaches the weights."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tiny import play_words, tiny_adapted_model, tiny_model
from tiny_runs import digest_of, run_here

from posttrain.train.online import loop
from posttrain.types import ScoredEpisode, StopReason

CLIP = {"type": "clip", "low": 0.2, "high": 0.2}

trained = partial(run_here, "online")


@pytest.mark.parametrize("more", [{}, {"updates_per_step": 3, "objective": CLIP}], ids=["one update", "three"])
def test_the_reward_rises_when_what_earned_more_becomes_likelier(tmp_path, more):
    _, lines = trained(tmp_path, max_steps=40, tasks_per_step=4, group_size=8, **more)
    rewards = [line["reward_mean"] for line in lines]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:5]) + 0.1


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


def test_leaving_out_episodes_without_an_advantage_leaves_the_gradient_as_it_is(tmp_path, monkeypatch):
    lean, lean_lines = trained(tmp_path / "lean", max_steps=3, tasks_per_step=4)
    monkeypatch.setattr(loop, "samples_with_signal", lambda samples, params: list(samples))
    full, full_lines = trained(tmp_path / "full", max_steps=3, tasks_per_step=4)
    assert any(line["groups_idle"] > 0 for line in lean_lines)
    assert [line["grad_norm"] for line in lean_lines] == pytest.approx(
        [line["grad_norm"] for line in full_lines], rel=1e-3
    )
    for name, weights in lean.state_dict().items():
        torch.testing.assert_close(weights, full.state_dict()[name], atol=1e-3, rtol=1e-2)


def test_an_engine_that_overstates_its_tokens_is_corrected_token_by_token(tmp_path, monkeypatch):
    """The engine says log p + 1 of each token: every gradient is multiplied by 1/e, and the log
    says so."""

    def overstated(model, task, seed):
        played = play_words(model, task, seed)
        both = zip(played.trajectory.logprobs, played.trajectory.mask, strict=True)
        return replace(played, trajectory=replace(played.trajectory, logprobs=[one + mask for one, mask in both]))

    _, [honest] = trained(tmp_path / "honest", max_steps=1, tasks_per_step=4)
    monkeypatch.setattr("tiny_runs.play_words", overstated)
    _, [corrected] = trained(tmp_path / "overstated", max_steps=1, tasks_per_step=4)
    assert honest["importance_mean"] == pytest.approx(1, abs=1e-5)
    assert corrected["importance_mean"] == pytest.approx(1 / math.e, rel=1e-5)
    assert corrected["logprob_gap_max"] == pytest.approx(1, abs=1e-5)
    assert corrected["grad_norm"] == pytest.approx(honest["grad_norm"] / math.e, rel=1e-4)


def test_one_step_ahead_each_batch_is_played_by_the_weights_before_the_last_step(tmp_path):
    _, lines = trained(tmp_path, max_steps=7, max_staleness=1, tasks_per_step=4, group_size=8)
    # A checkpoint is written after every 4th step: nothing is played ahead over it.
    assert [line["staleness"] for line in lines] == [0, 1, 1, 1, 0, 1, 1]
    assert max(line["logprob_gap_max"] for line in lines if line["staleness"] == 0) < 1e-5
    assert min(line["logprob_gap_max"] for line in lines if line["staleness"] == 1) > 1e-3


def test_a_step_is_used_as_often_as_it_is_told_and_then_the_clip_acts(tmp_path):
    _, once = trained(tmp_path / "once", max_steps=4, tasks_per_step=4)
    _, often = trained(tmp_path / "often", max_steps=4, tasks_per_step=4, updates_per_step=4, objective=CLIP)
    assert {line["updates"] for line in once} <= {0, 1}
    assert 4 in {line["updates"] for line in often}
    assert max(line["clip_high"] + line["clip_low"] for line in once) == 0
    assert max(line["clip_high"] + line["clip_low"] for line in often) > 0


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
    assert all(np.isfinite(line["kl"]) for line in lines), "also where the first of each group was lost"
    assert {advantage for one, advantage in heard if one.is_aborted} == {0.0}


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


def test_a_first_model_that_nothing_asks_for_is_not_kept(tmp_path, monkeypatch):
    plain, lines = trained(tmp_path / "measured", max_steps=4)
    assert all("kl" in line for line in lines)
    monkeypatch.setattr("posttrain.train.online.loop.frozen_copy", lambda model: pytest.fail("a copy was made"))
    spared, lines = trained(tmp_path / "spared", max_steps=4, kl={"type": "none", "is_measured": False})
    assert not any("kl" in line for line in lines)
    assert digest_of(spared) == digest_of(plain)


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
