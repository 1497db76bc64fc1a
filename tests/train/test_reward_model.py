import math

import numpy as np
import pytest
import torch
from tiny import copy_rows, spoilt, tiny_adapted_model, tiny_model, tiny_reward_model, tiny_tokenizer, word_task
from tiny_runs import run_reward_model

from posttrain.config.params import load_params
from posttrain.data.preferences import Pair
from posttrain.data.schemas import trajectory_row
from posttrain.models.loading import save_model
from posttrain.tracking.metrics_log import read_metrics
from posttrain.train.preference_pairs import orders_of
from posttrain.train.resumable_trainer import METRICS, open_run
from posttrain.train.reward_model import fold_heads, head_scores, heads_loss, new_reward_model, score_episodes
from posttrain.train.reward_model_quality import pair_accuracy
from posttrain.types import Message, StopReason, Trajectory


def test_the_better_of_a_pair_never_seen_gets_the_higher_score(tmp_path):
    model = tiny_reward_model()
    with open_run(tmp_path) as run:
        run_reward_model(run, model, max_steps=20, checkpoint_every_steps=20, lr=3e-2)
    model.eval()

    held_out, _ = copy_rows(60, seed=9)
    good = score_episodes(model, [row.input_ids for row in held_out])
    bad = score_episodes(model, [spoilt(row).input_ids for row in held_out])
    assert pair_accuracy([one - other for one, other in zip(good, bad, strict=True)]) > 0.9


def test_scores_do_not_depend_on_what_else_is_scored_or_in_which_order():
    model = tiny_reward_model()
    rows = [row.input_ids for row in copy_rows(5)[0]]

    together = score_episodes(model, rows)

    assert [score_episodes(model, [row])[0] for row in rows] == pytest.approx(together, abs=1e-6)
    assert score_episodes(model, rows[::-1]) == pytest.approx(together[::-1], abs=1e-6)


def test_a_new_reward_model_begins_without_an_opinion_on_the_body_of_the_policy(tmp_path, repository):
    policy = tiny_model()
    save_model(policy, tiny_tokenizer(), tmp_path / "policy")
    params = load_params(repository / "params.yaml").model

    model = new_reward_model(tmp_path / "policy", params, seed=1)

    assert score_episodes(model, [[2, 5, 1], [2, 6, 7, 1]]) == [0.0, 0.0]
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, policy.model.layers[0].mlp.up_proj.weight)


def softplus(value):
    return math.log1p(math.exp(value))


def test_each_head_learns_the_order_of_its_score_and_a_pair_without_one_the_sum():
    margins = torch.tensor([[2.0, -1.0], [0.5, 3.0], [1.0, 2.0]])
    orders = torch.tensor([[1.0, -1.0], [0.0, -1.0], [0.0, 0.0]])
    weights = torch.tensor([0.75, 0.25])
    by_hand = [0.75 * softplus(-2) + 0.25 * softplus(-1), 0.25 * softplus(3), softplus(-(0.75 + 0.5))]
    assert float(heads_loss(margins, orders, weights)) == pytest.approx(sum(by_hand) / 3, abs=1e-6)


def test_the_order_of_a_score_is_by_who_has_more_of_it():
    chosen, rejected = (pairs_row({"success": 1.0, "turns": turns, "own": 0.3 + 1e-12}) for turns in (0.2, 0.6))
    assert orders_of(Pair(chosen, rejected), ["success", "turns", "own"]) == [0.0, -1.0, 0.0]
    assert orders_of(Pair(chosen, pairs_row({})), ["success", "turns"]) == [0.0, 0.0]


def pairs_row(scores):
    task = word_task(4, 9)
    played = Trajectory("4 9", (*task.messages, Message("assistant", "done")), StopReason.DONE, scores=scores)
    return trajectory_row(played, task, [])


@pytest.mark.parametrize("is_adapted", [False, True])
def test_two_heads_learn_opposite_orders_and_are_folded_into_their_sum(tmp_path, is_adapted):
    """By the first head copies are better, by the second worse; the first weighs more."""
    model = tiny_adapted_model("SEQ_CLS", num_labels=2) if is_adapted else tiny_reward_model(num_labels=2)
    heads = {"right": 0.75, "wrong": 0.25}
    with open_run(tmp_path) as run:
        orders = [[1.0, -1.0]] * 30
        run_reward_model(run, model, max_steps=40, checkpoint_every_steps=40, lr=3e-2, heads=heads, orders=orders)
    model.eval()

    held_out = copy_rows(60, seed=9)[0]
    ids = [row.input_ids for row in (*held_out, *map(spoilt, held_out))]
    scores = head_scores(model, ids)
    margins = scores[:60] - scores[60:]
    assert pair_accuracy(margins[:, 0]) > 0.9
    assert pair_accuracy(margins[:, 1]) < 0.1
    folded = fold_heads(model, [0.75, 0.25])
    assert folded.config.num_labels == 1
    np.testing.assert_allclose(score_episodes(folded, ids), scores @ [0.75, 0.25], atol=1e-4)
    lines = read_metrics(tmp_path / METRICS)
    assert lines[-1]["pair_accuracy"] > 0.9
