"""Several reward models as one score: their bounds, their scales, and where they lie."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from tiny import copy_rows, tiny_reward_model, word_task

from posttrain.runtime.exits import ConfigurationError
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.policy_params import RefreshParams, TrainPolicyParams
from posttrain.train.reward_bound import LessVarianceBound, MeanBound, MinBound
from posttrain.train.reward_ensemble import RewardModels, load_reward_models, member_folder, scale_of, write_scale
from posttrain.train.reward_model import score_episodes
from posttrain.train.reward_refresh import RewardRefresh
from posttrain.types import Message, ScoredEpisode, StopReason, Trajectory

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


def group_of(number, **changes):
    """Two episodes of a task, of which the one that ends with word 5 is the better."""
    task = word_task(4, 9)
    words = (*task.messages, Message("assistant", "done"))
    made = [
        Trajectory("4 9", words, StopReason.DONE, token_ids=(2, 6 + number % 8, last), mask=(0, 1, 1), reward=reward)
        for last, reward in ((5, 1.0), (4, 0.0))
    ]
    return EpisodeGroup(task, [ScoredEpisode(replace(one, **changes)) for one in made])


def refresh_of(model, **changes):
    knobs = {"every_steps": 2, "max_steps": 30, "batch_size": 8, "lr": 1e-2} | changes
    return RewardRefresh(RewardModels([model], [(0.0, 1.0)]), RefreshParams(**knobs), seed=1)


def test_models_learn_on_from_new_pairs_at_their_steps_alone():
    model = tiny_reward_model().eval()
    model.score.weight.data.zero_()
    refresh, groups = refresh_of(model), [group_of(number) for number in range(6)]
    aborted, equal = group_of(0, stop_reason=StopReason.ENGINE_LOST), group_of(0, reward=0.5)
    assert refresh.observe(1, [*groups, aborted, equal]) == {}
    assert not model.score.weight.any()
    assert refresh.observe(2, groups) == {"reward_model_accuracy": 0.0}  # ties are not in order
    assert refresh.observe(3, groups) == {}
    assert refresh.observe(4, groups) == {"reward_model_accuracy": 1.0}
    assert refresh.observe(6, []) == {}, "what was learnt is not learnt again"
    assert not model.training


def test_a_resumed_refresh_ends_with_the_same_weights(tmp_path):
    groups, ends = [group_of(number) for number in range(6)], []
    for is_cut in (False, True):
        torch.manual_seed(0)
        refresh = refresh_of(tiny_reward_model().eval())
        for step in (1, 2, 3):
            refresh.observe(step, groups)
        if is_cut:
            refresh.save(tmp_path)
            refresh = refresh_of(tiny_reward_model().eval())
            refresh.load(tmp_path)
        refresh.observe(4, groups)
        ends.append(refresh._models.members[0].state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_refresh_without_a_reward_model_is_refused(repository):
    knobs = yaml.safe_load((repository / "params.yaml").read_text())["train_policy"]
    refresh = yaml.safe_load(RefreshParams.example)
    with pytest.raises(ValueError, match="reward_model_refresh is set"):
        TrainPolicyParams.model_validate({**knobs, "reward_model_refresh": refresh})
    TrainPolicyParams.model_validate({**knobs, "reward_model_refresh": refresh, "reward_model_weight": 1.0})


def test_a_refresh_may_go_by_a_score_that_says_otherwise_than_the_reward():
    def group(number):
        made = group_of(number)
        marks = ({"judge_task": 0.0}, {"judge_task": 1.0})
        scored = [
            replace(one, trajectory=replace(one.trajectory, scores=mark))
            for one, mark in zip(made.episodes, marks, strict=True)
        ]
        return EpisodeGroup(made.task, scored)

    model, groups = tiny_reward_model().eval(), [group(number) for number in range(6)]
    refresh = refresh_of(model, by="judge_task")
    for step in (1, 2, 3, 4):
        metrics = refresh.observe(step, groups)
    assert metrics == {"reward_model_accuracy": 1.0}
    better, worse = (score_episodes(model, [list(one.trajectory.token_ids)])[0] for one in groups[0].episodes[::-1])
    assert better > worse
    with pytest.raises(ConfigurationError, match="by is judge_safety, and an episode has the scores judge_task"):
        refresh_of(model, by="judge_safety").observe(1, groups)
