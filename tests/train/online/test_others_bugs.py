"""Mistakes in credit that others shipped, each tried here: none may come back by another name."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from tiny import play_words
from tiny_runs import run_here

from posttrain.train.advantages.credit import EpisodeCredit, StepContext
from posttrain.train.advantages.groups import Group, Turn
from posttrain.train.advantages.returns import DiscountedCredit, StatesCredit
from posttrain.train.advantages.scores import ScoresCredit
from posttrain.train.advantages.turn_scores import TurnScoresCredit

KINDS = [EpisodeCredit, ScoresCredit, DiscountedCredit, TurnScoresCredit, StatesCredit]
OWN = [{"type": "group_mean"}, {"type": "leave_one_out"}]
NONE, STD = {"type": "none"}, {"type": "group_std", "floor": 1e-4}
START = [Turn(1, "start", None)]


def group(*rewards, turns_G=None):
    rewards_G = np.array(rewards, float)
    return Group("t", rewards_G, rewards_G == 1, turns_G or [START] * len(rewards), {"completion": rewards_G})


def credited(kind, *groups, **knobs):
    values = {"type": kind.model_fields["type"].annotation.__args__[0], **yaml.safe_load(kind.example), **knobs}
    context = StepContext(score_weights={"completion": 1.0})
    found = kind.model_validate(values).token_advantages(groups, context)
    return [[of_tokens.tolist() for of_tokens in of_group] for of_group in found]


def test_leaving_one_out_has_no_residue_of_rounding():
    """NeMo-RL #4161: in float32 a sum less one of its members is not the sum of the others, and
    over a deviation of nearly nothing that was an advantage of 7,428."""
    rewards = [0.1 + 1e-8 * place for place in range(64)]
    [found] = credited(EpisodeCredit, group(*rewards), baseline=OWN[1], scale=STD)
    assert max(abs(one) for [one] in found) < 4
    in_float32 = np.array([0.1] * 64, np.float32)
    residue = in_float32 - (in_float32.sum() - in_float32) / np.float32(63)
    assert np.abs(residue).max() > 0, "as float32 has it"
    assert credited(EpisodeCredit, group(*in_float32), baseline=OWN[1], scale=STD) == [[[0.0]] * 64]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_sibling_is_nobodys_baseline(kind):
    """verl #6375 and #6452, OpenRLHF #1239: a rejected member that stayed in its group with a
    reward of -100 made the mean -49.5 for one that earned 1. Who was lost is no member: the three
    that are left are credited as a group of three, beside whole groups."""
    left, whole = group(1, 0, 0), group(1, 1, 0, 0)
    found = credited(kind, left, whole)
    assert [len(of_group) for of_group in found] == [3, 4]
    assert found[0][1] == found[0][2]
    if kind is not ScoresCredit:
        assert found[0] == credited(kind, left)[0]
    [unscaled] = credited(EpisodeCredit, left, scale=NONE)
    assert np.ravel(unscaled) == pytest.approx([2 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize("baseline", OWN, ids=["group_mean", "leave_one_out"])
@pytest.mark.parametrize("kind", [EpisodeCredit, DiscountedCredit, TurnScoresCredit, StatesCredit])
def test_groups_of_unequal_size_have_each_their_own_mean(kind, baseline):
    """slime #2062: groups that could not be stacked were compared with the mean of the step."""
    uneven = [group(1, 0, 0, 0), group(1, 0), group(0.5, 0.5, 0.5)]
    together = credited(kind, *uneven, baseline=baseline, scale=NONE)
    assert together == [credited(kind, one, baseline=baseline, scale=NONE)[0] for one in uneven]
    assert together[2] == [[0.0]] * 3, "half a point is the mean of its own"


@pytest.mark.parametrize("kind", [EpisodeCredit, DiscountedCredit, TurnScoresCredit, StatesCredit])
def test_an_episode_counts_once_however_many_turns_it_took(kind):
    """Agent Lightning #445: each turn was a sample, so that an episode of five turns was five in
    the mean. The last turns of one of five and of one of one differ from 1/2 by as much."""
    long = [Turn(1, f"{place}", None) for place in range(5)]
    one = group(1, 0, turns_G=[long, START])
    [[of_long, of_short]] = credited(kind, one, scale=NONE)
    assert (of_long[-1], of_short[-1]) == (0.5, -0.5)


def test_scores_of_an_episode_count_once_however_many_turns_it_took():
    """The same of scores: their deviation is over episodes."""
    long = [START[0]] * 5
    assert credited(ScoresCredit, group(1, 0, turns_G=[long, START]))[0][1] == credited(ScoresCredit, group(1, 0))[0][1]


def test_groups_that_are_not_learnt_from_are_told_all_the_same(tmp_path):
    """prime-rl #3515: what was filtered was gone from the metrics too, and a task that nobody
    solves looked like one that nobody plays."""
    refilled = {"order": {"type": "uniform"}, "max_refills": 3}
    _, lines = run_here("online", tmp_path, max_steps=4, tasks_per_step=4, sampling=refilled)
    with_equal = [line for line in lines if line["frac_reward_zero_std"] > 0]
    assert with_equal
    for line in with_equal:
        num_equal = line["frac_reward_zero_std"] * line["groups_played"]
        assert num_equal == pytest.approx(round(num_equal))
        assert line["groups_played"] >= line["groups_trained"] + round(num_equal)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("level", [0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9])
def test_equal_rewards_are_no_spread_at_any_level(level, sign, kind):
    """TRL: the deviation of eight equal float32 rewards is not 0 at these levels, and was taken for
    a spread of their own."""
    in_float32 = torch.tensor([sign * level] * 8)
    assert float(in_float32.std()) > 0, "as float32 has it"
    equal = group(*in_float32.tolist())
    assert credited(kind, equal) == [[[0.0]] * 8]
    assert credited(kind, equal, group(1, *[0] * 7))[0] == [[0.0]] * 8


def test_a_dropped_group_still_holds_the_policy_to_its_start(tmp_path, monkeypatch):
    """prime-rl #3223: a group that was filtered lost its divergence from the loss as well. Here all
    groups are dropped, from a step on in which the policy has moved."""

    def first_then_equal(model, task, seed):
        played = play_words(model, task, seed)
        First.num += 1
        return played if First.num <= 4 * 8 else replace(played, trajectory=replace(played.trajectory, reward=0.5))

    class First:
        num = 0

    monkeypatch.setattr("tiny_runs.play_words", first_then_equal)
    credit = yaml.safe_load(
        "{type: episode, baseline: {type: group_mean}, scale: {type: none}, drop: equal, "
        "equal_groups: {type: by_baseline}}"
    )
    sizes = {"tasks_per_step": 4, "group_size": 8}
    _, lines = run_here("online", tmp_path, max_steps=6, **sizes, credit=credit, kl={"type": "loss", "weight": 1.0})
    assert [line["groups_dropped_equal"] for line in lines[1:]] == [4] * 5
    assert all(line["updates"] == 1 for line in lines)
    assert lines[1]["grad_norm"] > 0
