"""The loop of learning online on a tiny model: it learns, moves nothing without a signal, corrects
for what drew the tokens, and each of its choices reaches the weights."""

import copy
import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from tiny import play_words, tiny_adapted_model, tiny_model
from tiny_runs import digest_of, run_here
from torch.utils._pytree import tree_leaves

from posttrain.runtime.exits import StoppedByAlarm
from posttrain.train.online import loop, updates
from posttrain.types import ScoredEpisode, StopReason

CLIP = {"type": "clip", "low": 0.2, "high": 0.2}

trained = partial(run_here, "online")


@pytest.mark.parametrize(
    "more",
    [
        {"max_steps": 40},
        {"max_steps": 12, "lr": 0.06, "updates_per_step": 3, "objective": CLIP},
    ],
    ids=["one update", "three"],
)
def test_the_reward_rises_when_what_earned_more_becomes_likelier(tmp_path, more):
    _, lines = trained(tmp_path, tasks_per_step=4, group_size=8, **more)
    rewards = [line["reward_mean"] for line in lines]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.1


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


def without_numbers(monkeypatch, is_broken, *, broken):
    """The episodes of steps (of four groups of eight) that `is_broken` are changed by `broken`."""
    num_played = 0

    def play(model, task, seed):
        nonlocal num_played
        num_played += 1
        played = play_words(model, task, seed)
        return replace(played, trajectory=broken(played.trajectory)) if is_broken(-(-num_played // 32)) else played

    monkeypatch.setattr("tiny_runs.play_words", play)


def no_logprob(one):
    return replace(one, logprobs=[math.nan if written else 0.0 for written in one.mask])


def endless_reward(one):
    """Its square has no room in a float32: gradients are finite, their norm is not."""
    return replace(one, reward=one.reward * 1e30)


BROKEN = {
    "tasks_per_step": 4,
    "group_size": 8,
    "kl": {"type": "none", "is_measured": False},
    "credit": {
        "type": "episode",
        "baseline": {"type": "group_mean"},
        "scale": {"type": "none"},
        "drop": "none",
        "equal_groups": {"type": "by_baseline"},
    },
}


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("broken", [no_logprob, endless_reward])
def test_an_update_whose_gradient_is_no_number_is_skipped(tmp_path, monkeypatch, broken, optimizer):
    """In steps 3, 4 and 6 of 7; two in a row are not yet three."""
    digests = []
    model = tiny_model()
    without_numbers(monkeypatch, {3, 4, 6}.__contains__, broken=broken)
    more = {"max_steps": 7, "optimizer": optimizer, "on_step": lambda *_: digests.append(digest_of(model))}
    _, lines = trained(tmp_path, model, **more, **BROKEN)
    assert [line["skipped_updates"] for line in lines] == [0, 0, 1, 1, 0, 1, 0]
    assert [line["updates"] for line in lines] == [1, 1, 0, 0, 1, 0, 1]
    assert [line["grad_norm"] for line in lines][2] is None
    digests.append(digest_of(model))
    is_moved = [one != other for one, other in itertools.pairwise(digests)]
    assert is_moved == [True, True, False, False, True, False, True]
    assert all(bool(torch.isfinite(weights).all()) for weights in model.state_dict().values())


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_skipped_update_leaves_the_momentum_as_it_was(tmp_path, monkeypatch, optimizer):
    """And no gradient that the next one would be added to."""
    is_kept = []

    def tensors_of(optim):
        return [leaf for leaf in tree_leaves(optim.state_dict()) if isinstance(leaf, torch.Tensor)]

    def learn(accelerator, learner, optim, *args, **how):
        before = copy.deepcopy(tensors_of(optim))
        found = updates.learn(accelerator, learner, optim, *args, **how)
        is_kept.append(len(before) > 0 and all(map(torch.equal, before, tensors_of(optim))))
        assert all(weight.grad is None for weight in learner.parameters())
        return found

    monkeypatch.setattr(loop, "learn", learn)
    without_numbers(monkeypatch, {3, 4, 6}.__contains__, broken=no_logprob)
    trained(tmp_path, max_steps=7, optimizer=optimizer, **BROKEN)
    assert is_kept == [False, False, True, True, False, True, False]


def test_after_three_skipped_updates_in_a_row_a_training_ends_and_says_what_to_do(tmp_path, monkeypatch):
    without_numbers(monkeypatch, lambda step: step in (2, 4, 5, 6), broken=no_logprob)
    with pytest.raises(StoppedByAlarm, match=r"3 updates in a row .* lower train_policy.lr"):
        trained(tmp_path, max_steps=9, **BROKEN)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 6, "the step that ends it is told, too"


def test_where_one_process_has_no_number_all_skip_alike(tmp_path, monkeypatch):
    """Another process's norm is NaN, this one's is not, in the first of three updates."""
    norms = iter([math.nan, 1.0, 1.0])

    def gathered(value):
        return [value, next(norms)] if isinstance(value, float) else [value]

    monkeypatch.setattr(updates.distributed, "gather", gathered)
    _, [line] = trained(tmp_path, max_steps=1, tasks_per_step=4, updates_per_step=3, objective=CLIP)
    assert (line["updates"], line["skipped_updates"]) == (2, 1)


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


LOST = {"stop_reason": StopReason.ENGINE_LOST, "token_ids": (), "mask": (), "logprobs": (), "reward": None}


@pytest.mark.parametrize("num_left", [0, 1])
def test_a_step_whose_groups_have_one_survivor_each_teaches_nothing_and_is_counted(tmp_path, monkeypatch, num_left):
    """In the second and the last of 4 steps of four groups of eight."""
    num_played, digests = 0, []

    def play(model, task, seed):
        nonlocal num_played
        step, place = divmod(num_played, 32)
        num_played += 1
        played = play_words(model, task, seed)
        is_gone = step in (1, 3) and place % 8 >= num_left
        return ScoredEpisode(replace(played.trajectory, **LOST)) if is_gone else played

    monkeypatch.setattr("tiny_runs.play_words", play)
    model = tiny_model()
    more = {
        "max_steps": 4,
        "tasks_per_step": 4,
        "group_size": 8,
        "on_step": lambda *_: digests.append(digest_of(model)),
    }
    _, lines = trained(tmp_path, model, **more)
    assert [line["groups_too_small"] for line in lines] == [0, 4, 0, 4]
    assert [line["updates"] for line in lines] == [1, 0, 1, 0]
    assert [line["lost"] for line in lines] == [0, 1 - num_left / 8] * 2
    assert digests[1] == digests[2] != digests[3] == digest_of(model)
    assert all(set(line) >= set(lines[2]) for line in lines)
    assert all(np.isfinite(value) for line in lines for value in line.values())


@pytest.mark.parametrize("num_left", [0, 1])
@pytest.mark.parametrize(
    "credit",
    [
        "{type: episode, baseline: {type: nothing}, scale: {type: batch_std, floor: 1.0e-4}, drop: none, "
        "equal_groups: {type: by_entropy, alpha: 0.1}}",
        "{type: scores, floor: 1.0e-4}",
        "{type: gae, over: tokens, gamma: 1.0, lam: 0.9, scale: {type: batch_std, floor: 1.0e-4}, "
        "critic: {trunk: shared, lr: 1.0e-2, updates_per_step: 1, warmup_steps: 0}}",
        "{type: branch_values, branches: 2, at: {type: entropy, share: 0.5, tokens: 1}, scale: {type: none}}",
    ],
)
def test_a_step_of_lone_episodes_goes_on_under_each_kind_of_credit(tmp_path, monkeypatch, credit, num_left):
    num_played = 0

    def play(model, task, seed):
        nonlocal num_played
        num_played += 1
        played = play_words(model, task, seed)
        return ScoredEpisode(replace(played.trajectory, **LOST)) if num_played % 4 >= num_left else played

    monkeypatch.setattr("tiny_runs.play_words", play)
    _, lines = trained(tmp_path, max_steps=2, credit=yaml.safe_load(credit), kl={"type": "loss", "weight": 0.1})
    assert [line["groups_too_small"] for line in lines] == [2, 2]


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
