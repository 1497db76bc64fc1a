import pytest
import torch
from tiny import copy_rows, spoilt, tiny_model, tiny_reward_model, tiny_tokenizer
from tiny_runs import run_reward_model

from posttrain.config.params import load_params
from posttrain.models.loading import save_model
from posttrain.train.resumable_trainer import open_run
from posttrain.train.reward_model import new_reward_model, score_episodes
from posttrain.train.reward_model_quality import pair_accuracy


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
