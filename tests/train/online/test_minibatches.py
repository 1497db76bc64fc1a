"""A pass over a step in several minibatches: each is an optimizer step on whole groups, with ratios
to the probabilities that the step began with."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from tiny import play_words, tiny_model, word_task
from tiny_runs import digest_of, run_here

from posttrain.train.online.params import OnlineParams
from posttrain.train.online.updates import Sample, minibatches_of

LR, SEED = 1e-2, 1
CLIP = {"type": "clip", "low": 0.01, "high": 0.02}
TASKS = {"tasks_per_step": 4, "group_size": 4}
COIN = (  # an advantage for every group
    "{type: episode, baseline: {type: group_mean}, scale: {type: none}, drop: none, "
    "equal_groups: {type: by_coin, size: 0.3}}"
)

trained = partial(run_here, "online")


def params_of(**changes):
    return OnlineParams.model_validate(yaml.safe_load(OnlineParams.example) | {"type": "online"} | changes)


def groups_of(advantages):
    """A group of two episodes for each, the one with it and the other with its negative."""
    model = tiny_model()
    return [
        [Sample(play_words(model, word_task(4, 9), place), np.full(2, sign * one)) for sign in (1.0, -1.0)]
        for place, one in enumerate(advantages)
    ]


@pytest.mark.parametrize("count", [2, 4, 8])
def test_minibatches_share_whole_groups_out_equally_and_anew_in_each_step(count):
    groups, params = groups_of(range(1, 9)), params_of(minibatches=count)
    orders = []
    for seed in (0, 1):
        for step in range(20):
            parts = minibatches_of(groups, params, seed=seed, step=step)
            assert parts == minibatches_of(groups, params, seed=seed, step=step)
            assert [len(part) for part in parts] == [16 // count] * count
            orders.append([one for part in parts for one in part])
            by_group = [abs(float(one.advantages_T[0])) for one in orders[-1]]
            assert by_group[::2] == by_group[1::2], "both of a group stand together"
            assert sorted(by_group[::2]) == list(range(1, 9))
    assert len({tuple(map(id, order)) for order in orders}) == len(orders)


def test_a_minibatch_without_a_signal_is_no_optimizer_step():
    silent = groups_of([0, 0, 0, 1])
    assert len(minibatches_of(silent, params_of(minibatches=4), seed=0, step=0)) == 1
    assert len(minibatches_of(silent[:3], params_of(minibatches=4), seed=0, step=0)) == 0
    held = params_of(minibatches=4, kl={"type": "loss", "weight": 0.1})
    assert len(minibatches_of(silent[:3], held, seed=0, step=0)) == 3, "one has no group"


def by_hand(model, parts, *, updates_per_step):
    """AdamW's steps on the mean over each part's tokens of PPO's loss; the number of them and the
    shares of tokens held from below and above."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)

    def logprobs_of(part):
        return [_logprobs(model, one.episode.trajectory) for one in part]

    with torch.no_grad():
        before = [logprobs_of(part) for part in parts]
    sides = []
    for _ in range(updates_per_step):
        for part, old in zip(parts, before, strict=True):
            losses = []
            for one, now_T, old_T in zip(part, logprobs_of(part), old, strict=True):
                advantage, ratio_T = float(one.advantages_T[0]), (now_T - old_T).exp()
                held_T = ratio_T.clamp(1 - CLIP["low"], 1 + CLIP["high"])
                losses.append(-torch.minimum(ratio_T * advantage, held_T * advantage))
                if advantage:  # others are left out of the batch
                    moved_T = (ratio_T - held_T).sign()
                    sides += torch.where(moved_T * advantage > 0, moved_T, 0).tolist()
            torch.cat(losses).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return [sides.count(side) / len(sides) for side in (-1, 1)]


def _logprobs(model, trajectory):
    """Log-probabilities of the two words that the agent wrote."""
    ids = torch.tensor([list(trajectory.token_ids)])
    return model(ids).logits[0].log_softmax(-1)[[3, 5], ids[0, [4, 6]]]


@pytest.mark.parametrize(("count", "updates_per_step"), [(2, 1), (4, 1), (2, 3)])
def test_a_pass_is_as_many_plain_steps_by_the_ratios_to_where_the_step_began(tmp_path, count, updates_per_step):
    heard, model = [], tiny_model()
    expected = copy.deepcopy(model)
    _, [line] = trained(
        tmp_path,
        model,
        max_steps=1,
        lr=LR,
        optimizer="adamw",
        minibatches=count,
        updates_per_step=updates_per_step,
        objective=CLIP,
        credit=yaml.safe_load(COIN),
        on_step=lambda _, *both: heard.append(both),
        **TASKS,
    )
    [(episodes, means)] = heard
    samples = [Sample(one, np.full(2, mean)) for one, mean in zip(episodes, means, strict=True)]
    groups = [samples[start : start + 4] for start in range(0, 16, 4)]
    parts = minibatches_of(groups, params_of(minibatches=count), seed=SEED, step=0)
    low, high = by_hand(expected, parts, updates_per_step=updates_per_step)

    assert len(parts) == count
    assert line["updates"] == count * updates_per_step
    assert (line["clip_low"], line["clip_high"]) == pytest.approx((low, high), abs=1e-9)
    assert low + high > 0
    for name, weight in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=1e-6, msg=name)


def test_one_minibatch_is_the_step_that_it_was(tmp_path):
    usual, lines = trained(tmp_path / "usual", max_steps=3, **TASKS)
    one, same = trained(tmp_path / "one", max_steps=3, minibatches=1, **TASKS)
    several, others = trained(tmp_path / "several", max_steps=3, minibatches=4, **TASKS)
    assert (digest_of(one), same) == (digest_of(usual), lines)
    assert digest_of(several) != digest_of(usual)
    assert max(line["updates"] for line in others) > 1


def test_minibatches_that_would_not_be_equal_are_refused_and_a_clip_acts_from_two_on():
    params_of(minibatches=2, objective=CLIP)
    with pytest.raises(ValueError, match="tasks_per_step is 16 and minibatches 3"):
        params_of(minibatches=3)
    with pytest.raises(ValueError, match="updates_per_step is 1 and minibatches 1"):
        params_of(objective=CLIP)
