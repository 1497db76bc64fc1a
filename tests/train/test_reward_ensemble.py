"""Several reward models as one score: their bounds, their scales, and where they lie."""

import numpy as np
import pytest
import torch
import yaml
from tiny import copy_rows, tiny_reward_model

from posttrain.train.policy_params import TrainPolicyParams
from posttrain.train.reward_bound import LessVarianceBound, MeanBound, MinBound
from posttrain.train.reward_ensemble import RewardModels, load_reward_models, member_folder, scale_of, write_scale
from posttrain.train.reward_model import score_episodes

SCORES = np.array([[1.0, 0.0, 2.0], [3.0, 0.0, -2.0]])


def test_the_bounds_are_the_mean_the_lowest_and_the_mean_less_the_variance():
    assert MeanBound(type="mean").of(SCORES).tolist() == [2.0, 0.0, 0.0]
    assert MinBound(type="min").of(SCORES).tolist() == [1.0, 0.0, -2.0]
    assert LessVarianceBound(type="less_variance", weight=0.5).of(SCORES).tolist() == [1.5, 0.0, -2.0]


def members_of(folder, seeds):
    made = []
    for number, seed in enumerate(seeds, 1):
        model = tiny_reward_model()
        model.score.weight.data.normal_(generator=torch.Generator().manual_seed(seed))
        model.save_pretrained(member_folder(folder, number))
        ids = [row.input_ids for row in copy_rows(20)[0]]
        write_scale(member_folder(folder, number), scale_of(model.eval(), ids))
        made.append(model)
    return made, ids


def test_members_are_compared_in_units_of_their_own_deviation(tmp_path):
    made, ids = members_of(tmp_path, [1, 2, 3])
    found = load_reward_models(tmp_path, MinBound(type="min"))
    scores = found.member_scores(ids)
    assert scores.shape == (3, 20)
    assert scores.mean(1) == pytest.approx(0, abs=1e-6)
    assert scores.std(1) == pytest.approx(1, abs=1e-6)
    raw = np.array(score_episodes(made[1], ids))
    assert scores[1] == pytest.approx((raw - raw.mean()) / raw.std(), abs=1e-5)
    assert found.score(ids) == pytest.approx(scores.min(0))
    single = load_reward_models(member_folder(tmp_path, 3), MeanBound(type="mean"))
    assert single.score(ids) == pytest.approx(scores[2])
    raw = score_episodes(made[2], ids)
    assert single.unit * (single.score(ids)[0] - single.score(ids)[1]) == pytest.approx(raw[0] - raw[1], abs=1e-5)


def test_equal_scores_have_a_deviation_of_one():
    model = tiny_reward_model().eval()
    model.score.weight.data.zero_()
    ids = [row.input_ids for row in copy_rows(4)[0]]
    assert scale_of(model, ids) == (0.0, 1.0)
    assert RewardModels([model], [(0.0, 1.0)]).score(ids).tolist() == [0.0] * 4


def test_a_world_that_counts_for_less_beside_nothing_is_refused(repository):
    knobs = yaml.safe_load((repository / "params.yaml").read_text())["train_policy"]
    with pytest.raises(ValueError, match="reward_model_weight is 0"):
        TrainPolicyParams.model_validate({**knobs, "world_reward_weight": 0.0})
    TrainPolicyParams.model_validate({**knobs, "world_reward_weight": 0.0, "reward_model_weight": 1.0})
