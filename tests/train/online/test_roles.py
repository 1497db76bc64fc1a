"""Two policies in one episode: which tokens carry loss and with which advantage, what a weight of 0
leaves of a role, and that a killed run ends with the same bytes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError
from tiny import tiny_model
from tiny_runs import Death, train
from two_policies import TwoPolicies, make_model

from posttrain.config.params import ParamsError, parse_params, read_knobs, set_knobs
from posttrain.models.token_logprobs import IGNORED
from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.online.metrics import episode_metrics
from posttrain.train.online.params import OnlineParams
from posttrain.train.online.updates import Sample, batch_loss, batch_of, score, weights_of
from posttrain.train.rejection_sampling.rounds import _rows
from posttrain.train.roles import EQUAL, RoleWeights, learnt_part, num_written, weighed
from posttrain.types import PLANNER, WORKER, ScoredEpisode, StopReason, Trajectory
from tests.rollout.voiced import TASKS

HALF = RoleWeights(planner=1.0, worker=0.5)
# the planner reads 2, writes 5 6, reads 7 and writes 8; two workers read 3, and write 9 10 and 11
ONE = Trajectory(
    "t",
    (),
    StopReason.DONE,
    token_ids=(2, 5, 6, 7, 8, 3, 9, 10, 3, 11),
    mask=(0, 1, 1, 0, 1, 0, 1, 1, 0, 1),
    logprobs=(0.0, -1.0, -1.0, 0.0, -1.0, 0.0, -2.0, -2.0, 0.0, -2.0),
    window_starts=(5, 8),
    window_roles=(PLANNER, WORKER, WORKER),
)
OTHER = Trajectory("t", (), StopReason.DONE, token_ids=(2, 4), mask=(0, 1), logprobs=(0.0, -1.0))


def sample(trajectory, advantage, weights):
    one = learnt_part(trajectory, weights)
    return Sample(ScoredEpisode(one), weighed(np.full(sum(one.mask), advantage), one, weights))


def params_of(**changes):
    return OnlineParams.model_validate(yaml.safe_load(OnlineParams.example) | {"type": "online"} | changes)


def test_each_conversation_carries_loss_where_its_role_wrote_with_the_roles_share_of_the_advantage():
    batch = batch_of([sample(ONE, 2.0, HALF), sample(OTHER, -2.0, HALF)], pad_id=0)
    assert batch.input_ids_N_T.tolist() == [[2, 5, 6, 7, 8], [3, 9, 10, 0, 0], [3, 11, 0, 0, 0], [2, 4, 0, 0, 0]]
    assert batch.labels_N_T.where(batch.labels_N_T != IGNORED, 0).tolist() == [
        [0, 5, 6, 0, 8],
        [0, 9, 10, 0, 0],
        [0, 11, 0, 0, 0],
        [0, 4, 0, 0, 0],
    ]
    assert batch.advantages_N_T.tolist() == [[2, 2, 0, 2], [1, 1, 0, 0], [1, 0, 0, 0], [-2, 0, 0, 0]]
    assert batch.engine_logprobs_N_T[1].tolist() == [-2, -2, 0, 0]
    assert (batch.roles_N.tolist(), batch.lengths_N.tolist()) == ([0, 1, 1, 0], [3, 3, 3, 1])


@pytest.mark.parametrize(
    ("average", "planner", "worker"),
    [
        ("tokens", [1 / 4, 1 / 4], 1 / 3),  # the planners wrote 3 and 1 tokens, the workers 3
        ("episodes", [1 / 6, 1 / 2], 1 / 3),  # two episodes have a planner, one of them has workers
        ("max_tokens", [1 / 20, 1 / 20], 1 / 10),
    ],
)
def test_the_loss_is_the_sum_of_each_roles_mean(average, planner, worker):
    samples = [sample(ONE, 2.0, HALF), sample(OTHER, -2.0, HALF)]
    [weights] = weights_of([batch_of(samples, pad_id=0)], samples, params_of(average=average), 10)
    assert weights.tolist() == pytest.approx([planner[0], worker, worker, planner[1]])


def gradient(samples, **changes):
    """By role weights that are in the samples already."""
    model, params = tiny_model(), params_of(kl={"type": "loss", "weight": 0.1}, entropy_bonus=0.1, **changes)
    batch = batch_of(samples, pad_id=0)
    [weights] = weights_of([batch], samples, params, 10)
    now = score(model, batch, 1.0, with_entropies=True)
    before = now.logprobs.detach()
    batch_loss(now, before, batch, weights, params, reference_N_T=before - 1, kl_weight=0.1).backward()
    return torch.cat([one.grad.flatten() for one in model.parameters()])


@pytest.mark.parametrize("role", [PLANNER, WORKER])
def test_a_role_of_weight_0_leaves_no_gradient_at_all(role):
    """Though there are KL and entropy in the loss: it is that of the other role's rows alone."""
    weights = RoleWeights(**{**EQUAL.of_roles, role: 0.0})
    frozen = sample(ONE, 2.0, weights)
    assert num_written(frozen.episode.trajectory)[role] == 0
    windows = [part for own, part in zip(ONE.roles, ONE.windows, strict=True) if own != role]
    changed = [*ONE.token_ids]
    for own, part in zip(ONE.roles, ONE.windows, strict=True):
        changed[part] = [12] * (part.stop - part.start) if own == role else changed[part]
    assert torch.equal(gradient([frozen]), gradient([sample(replace(ONE, token_ids=changed), 2.0, weights)]))
    assert not torch.equal(gradient([frozen]), gradient([sample(ONE, 2.0, EQUAL)]))
    rows = _rows(frozen.episode.trajectory, is_accepted=True)
    assert [row.input_ids for row in rows] == [list(ONE.token_ids[part]) for part in windows]


def test_joint_gradients_are_the_sum_of_each_roles():
    alone = [sample(ONE, 2.0, RoleWeights(**{PLANNER: 0.0, WORKER: 0.0, role: 1.0})) for role in (PLANNER, WORKER)]
    torch.testing.assert_close(gradient([sample(ONE, 2.0, EQUAL)]), sum(gradient([one]) for one in alone))


def test_an_episode_of_one_policy_is_as_it_was_and_of_a_frozen_planner_who_delegates_nothing_nothing_is_learnt():
    advantages = np.ones(1)
    assert learnt_part(OTHER, EQUAL) is OTHER
    assert weighed(advantages, OTHER, EQUAL) is advantages
    assert sample(OTHER, 1.0, RoleWeights(planner=0.0, worker=1.0)).advantages_T.size == 0


@pytest.mark.needs_killed
def test_a_killed_run_of_two_policies_ends_with_the_same_bytes(tmp_path):
    code, expected = train("two_policies", tmp_path / "whole")
    assert code == 0
    assert train("two_policies", tmp_path / "cut", Death(after=3))[0] < 0
    assert train("two_policies", tmp_path / "cut") == (0, expected)
    frozen = train("two_policies", tmp_path / "frozen", worker=0.0)[1]
    assert frozen["weights"] != expected["weights"]


def test_a_step_tells_what_each_role_wrote():
    found = TwoPolicies(make_model(), RoleWeights(planner=1.0, worker=0.0)).run(TASKS[:2], [1, 2])
    logged = episode_metrics([EpisodeGroup(TASKS[0], found)])
    assert logged["length"] == logged["length_planner"] == np.mean([sum(one.trajectory.mask) for one in found])
    assert logged["length_worker"] > 0


def problems(**knobs):
    plan = read_knobs(Path("experiments/two_policies.yaml").read_bytes(), source="x")
    content = plan["set"] | plan["overrides"][2]["set"] | knobs
    params = read_knobs(Path("params.yaml").read_bytes(), source="y")
    list(set_knobs(params, content, source="z"))
    return parse_params(params, source="z")


WORKER_OF = {"max_turns": 8, "planner": {"type": "own"}, "worker": {"type": "folder", "path": "data/other_role/policy"}}


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"train_policy.role_weights": {"planner": 0.0, "worker": 0.0}}, "nothing would be learnt"),
        ({"agent.worker": None, "train_policy.role_weights": {"planner": 1.0, "worker": 0.5}}, "there is one policy"),
        ({"agent.worker": WORKER_OF}, "other weights are frozen"),
        ({"agent.tools": {"type": "search", "k": 3}}, "a worker's tools are its world's"),
        ({"train_policy.algorithm.join": {"type": "edits", "gamma": None}}, "takes it as one row"),
        ({"train_policy.reward_model_weight": 0.5}, "a reward model reads it as one row"),
        ({"train_policy.algorithm.credit": yaml.safe_load("{type: scores, floor: 1.0e-4}")}, None),
        (
            {
                "train_policy.algorithm.credit": yaml.safe_load(
                    "{type: discounted, gamma: 0.9, baseline: {type: group_mean}, scale: {type: none}, drop: none}"
                )
            },
            "it follows one conversation",
        ),
    ],
)
def test_choices_that_two_policies_leave_no_sense_are_refused(knobs, why):
    if why is None:
        assert problems(**knobs)
        return
    with pytest.raises((ParamsError, ValidationError), match=why):
        problems(**knobs)
