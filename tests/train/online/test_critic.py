"""A critic of a tiny model: it learns what episodes earn, moves nothing of the policy, hears of
nothing that is not the agent's, and goes on from its files to the same bytes."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import WORDS, play_words, tiny_adapted_model, tiny_model, word_task
from tiny_runs import critic_params, digest_of, parts_of_words
from torch import nn

from posttrain.train.advantages.critic import OPTIMIZER, WEIGHTS, Critic, explained_variance, targets_of
from posttrain.train.advantages.gae import gae

CPU = torch.device("cpu")
TASKS = [word_task(x, y) for x in range(4, 12) for y in range(12, 16)]


class KnowsHalf:
    """It writes the word asked for nine times in ten where that is one of the first four, and one
    time in ten else."""

    def __call__(self, input_ids):
        asked = int(input_ids[0, 1])
        right = 0.9 if asked < 8 else 0.1
        probabilities = torch.full((len(WORDS),), (1 - right) / (len(WORDS) - 1))
        probabilities[asked] = right
        return SimpleNamespace(logits=probabilities.log().expand(1, input_ids.shape[1], -1))


@pytest.fixture(scope="module")
def episodes():
    return [play_words(KnowsHalf(), task, seed) for seed in range(3) for task in TASKS]


@pytest.fixture(scope="module")
def parts(episodes):
    return parts_of_words(episodes)


def made(model=None, **knobs):
    return Critic(model or tiny_model(), critic_params(**knobs), device=CPU)


def by_row(tensors, parts):
    return [
        value_T[is_scored_T].double().numpy()
        for tensor, part in zip(tensors, parts, strict=True)
        for value_T, is_scored_T in zip(tensor, part.is_scored_N_T, strict=True)
    ]


def returns_of(critic, episodes, parts, *, over="tokens", lam=1.0):
    """Each part's rows are `episodes` in their order."""
    found = [
        gae(values_T, [1, 1], one.trajectory.reward, gamma=1.0, lam=lam, over=over)[1]
        for one, values_T in zip(episodes, by_row(critic.values(parts), parts), strict=True)
    ]
    places = iter(found)
    return [targets_of([next(places) for _ in part.lengths_N], part) for part in parts]


def explained(critic, returns, parts):
    return explained_variance(
        np.concatenate(by_row(returns, parts)), np.concatenate(by_row(critic.values(parts), parts))
    )


@pytest.mark.parametrize(("make", "over"), [(tiny_model, "tokens"), (tiny_adapted_model, "turns")])
def test_it_learns_what_words_earn(episodes, parts, make, over):
    critic = made(make(), lr=1e-2)
    errors = []
    for step in range(30):
        returns = returns_of(critic, episodes, parts, over=over, lam=0.95)
        if step == 0:
            assert explained(critic, returns, parts) == 0.0, "it knows nothing"
        errors.append(critic.learn(parts, returns))
    assert explained(critic, returns_of(critic, episodes, parts), parts) > 0.5
    assert errors[-1] < errors[0] / 2


def test_its_first_values_are_nothing_and_only_the_agents_tokens_ever_have_one(episodes, parts):
    for trunk in ("shared", "apart"):
        critic = made(trunk=trunk, lr=1e-2)
        assert not any(values_N_T.any() for values_N_T in critic.values(parts))
        for _ in range(2):
            critic.learn(parts, returns_of(critic, episodes, parts))
        for values_N_T, part in zip(critic.values(parts), parts, strict=True):
            assert torch.equal(values_N_T != 0, part.is_scored_N_T)


def test_a_value_knows_what_stands_before_its_token_and_nothing_else(episodes):
    """Column t is of token t + 1: it may change with token t, and not with its own."""
    [part] = parts_of_words(episodes[:8], 1)
    for trunk in ("shared", "apart"):
        critic = made(trunk=trunk, lr=1e-2)
        for _ in range(3):
            critic.learn([part], returns_of(critic, episodes[:8], [part]))
        [before] = critic.values([part])
        for place in (4, 6):
            changed = copy.deepcopy(part)
            changed.input_ids_N_T[:, place] = 3
            [after] = critic.values([changed])
            torch.testing.assert_close(after[:, :place], before[:, :place])
            if place == 4:
                assert (after[:, 5] != before[:, 5]).all(), "the second word's value knows the first word"


def test_the_error_is_that_of_before_and_the_first_update_is_made_by_hand(episodes, parts):
    """One update of the head alone, whose values are 0: the error is the mean square of the
    rewards, and the bias, like every weight, goes by AdamW's first step, its rate."""
    critic = made(trunk="shared", lr=1e-3, updates_per_step=1)
    error = critic.learn(parts, returns_of(critic, episodes, parts))
    assert error == pytest.approx(np.mean([one.trajectory.reward**2 for one in episodes]), rel=1e-5)
    head = critic._learnt["head"]
    assert head.bias.tolist() == pytest.approx([1e-3], rel=1e-3)
    assert head.weight.abs().flatten().tolist() == pytest.approx([1e-3] * 16, rel=1e-2)


@pytest.mark.parametrize("trunk", ["shared", "apart"])
def test_no_gradient_is_longer_than_one(episodes, parts, tmp_path, trunk):
    """AdamW's first moment is a tenth of its first gradient, which would be some 1000 long."""
    critic = made(trunk=trunk, updates_per_step=1)
    critic.learn(parts, [1000 * returns_N_T for returns_N_T in returns_of(critic, episodes, parts)])
    critic.save(tmp_path)
    moments = torch.load(tmp_path / OPTIMIZER, weights_only=True)["state"].values()
    assert sum(float(one["exp_avg"].square().sum()) for one in moments) ** 0.5 == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("trunk", ["shared", "apart"])
@pytest.mark.parametrize("make", [tiny_model, tiny_adapted_model])
def test_the_policy_is_not_moved_and_has_no_gradient(episodes, parts, make, trunk):
    model = make()
    before = digest_of(model)
    critic = made(model, trunk=trunk, lr=1e-2)
    for _ in range(3):
        critic.learn(parts, returns_of(critic, episodes, parts))
    assert digest_of(model) == before
    assert all(weight.grad is None for weight in model.parameters())
    assert any(values_N_T.any() for values_N_T in critic.values(parts))


@pytest.mark.parametrize("trunk", ["shared", "apart"])
def test_a_shared_trunk_follows_the_policy_and_one_apart_does_not(episodes, parts, trunk):
    model = tiny_model()
    critic = made(model, trunk=trunk, lr=1e-2)
    for _ in range(2):
        critic.learn(parts, returns_of(critic, episodes, parts))
    before = critic.values(parts)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    is_same = [torch.equal(*both) for both in zip(before, critic.values(parts), strict=True)]
    assert is_same == [trunk == "apart"] * len(parts)


def test_with_adapters_the_copys_adapters_alone_are_trained(episodes, parts):
    critic = made(tiny_adapted_model(), lr=1e-2)
    before = {name: weight.clone() for name, weight in critic._learnt.state_dict().items()}
    for _ in range(3):
        critic.learn(parts, returns_of(critic, episodes, parts))
    changed = {name for name, weight in critic._learnt.state_dict().items() if not torch.equal(weight, before[name])}
    assert {"head.weight", "head.bias"} < changed
    assert all("lora" in name for name in changed - {"head.weight", "head.bias"})


def test_without_a_return_nothing_is_learnt(episodes, parts):
    critic = made(lr=1e-2)
    before = digest_of(critic._learnt)
    nothing = [torch.full(part.is_scored_N_T.shape, torch.nan) for part in parts]
    assert critic.learn(parts, nothing) == 0.0
    assert digest_of(critic._learnt) == before


@pytest.mark.parametrize("trunk", ["shared", "apart"])
@pytest.mark.parametrize("make", [tiny_model, tiny_adapted_model])
def test_it_goes_on_from_its_files_to_the_same_bytes(episodes, parts, tmp_path, make, trunk):
    whole, cut, other = (made(make(), trunk=trunk, lr=1e-2) for _ in range(3))
    for step in range(6):
        whole.learn(parts, returns_of(whole, episodes, parts))
        going = cut if step < 3 else other
        going.learn(parts, returns_of(going, episodes, parts))
        if step == 2:
            cut.save(tmp_path)
            other.load(tmp_path)
    (tmp_path / "whole").mkdir()
    whole.save(tmp_path / "whole")
    other.save(tmp_path)
    for name in (WEIGHTS, OPTIMIZER):
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_parts_of_any_size_make_the_step_of_one(episodes):
    """The same is asked of the shares of several processes, in tests/real."""
    few, critics = episodes[:8], []
    for cuts in ([8], [5, 3], [1, 1, 6]):
        critic, ends = made(lr=1e-2), np.cumsum(cuts)
        parts = [one for end, size in zip(ends, cuts, strict=True) for one in parts_of_words(few[end - size : end], 1)]
        errors = [critic.learn(parts, returns_of(critic, few, parts)) for _ in range(4)]
        critics.append((errors, np.concatenate(by_row(critic.values(parts), parts))))
    for errors, values in critics[1:]:
        assert errors == pytest.approx(critics[0][0], rel=1e-4)
        np.testing.assert_allclose(values, critics[0][1], rtol=1e-3)


def test_explained_variance_is_worked_out_by_hand():
    returns = np.array([0.0, 1.0, np.nan])
    assert explained_variance(returns, np.array([0.0, 0.5, 9.0])) == 0.75
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(returns, returns + 3) == 1.0
    assert explained_variance(returns, np.zeros(3)) == 0.0
    assert explained_variance(returns, np.array([1.0, 0.0, 0.0])) == -3.0
    for level in (np.array([0.2, -0.1 + 0.3]), np.array([np.nan]), np.zeros(0)):
        assert explained_variance(level, np.ones(len(level))) == 0.0


def test_its_copy_has_no_dropout():
    model = tiny_adapted_model()
    assert any(module.p for module in model.modules() if isinstance(module, nn.Dropout))
    assert not any(module.p for module in made(model)._learnt.modules() if isinstance(module, nn.Dropout))
