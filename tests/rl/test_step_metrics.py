import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tiny import play_words, tiny_model, word_task
from tiny_runs import Death, digest_of, run_here, train

from posttrain.algorithms import grpo
from posttrain.algorithms.grpo_metrics import kl_estimate, step_metrics
from posttrain.algorithms.importance import importance_metrics, importance_weights, turn_numbers
from posttrain.algorithms.rollouts import ScoredEpisode
from posttrain.types import Message, Outcome, StopReason, Trajectory

FLAT = {
    "entropy",
    "kl",
    "length",
    "success",
    "turns",
    "tool_failures",
    "lr",
    "grad_norm",
    "step",
    "definition_version",
    "reward_mean",
    "reward_std",
}
GROUPS = {"reward_std_batch", "frac_reward_zero_std", "frac_tokens_nonzero_advantage"}
FLAT |= {"lost", "staleness", "importance_mean", "importance_max", "importance_capped_frac", "logprob_gap_max"}
FLAT |= {"strict_success", "logprob_gap_turn", "demonstration_loss"}
GROUPS |= {f"frac_reward_zero_std_{which}" for which in ("all_bad", "all_good", "other")}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


trained = partial(run_here, "grpo")


def test_the_reward_rises_when_what_earned_more_becomes_likelier(tmp_path):
    _, lines = trained(tmp_path, max_steps=40, tasks_per_step=4, group_size=8)

    rewards = [line["reward_mean"] for line in lines]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:5]) + 0.1


def test_every_step_writes_every_metric(tmp_path):
    _, lines = trained(tmp_path, max_steps=3)

    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(set(line) == FLAT | GROUPS for line in lines)


def test_before_the_first_step_the_policy_is_its_own_reference(tmp_path):
    _, lines = trained(tmp_path, max_steps=3)

    assert lines[0]["kl"] == pytest.approx(0.0, abs=1e-9)
    assert lines[2]["kl"] > 0


def test_leaving_out_episodes_without_an_advantage_leaves_the_gradient_as_it_is(tmp_path, monkeypatch):
    lean, lean_lines = trained(tmp_path / "lean", max_steps=3, tasks_per_step=4)
    monkeypatch.setattr(grpo, "_without_idle", lambda batch, at_least: batch)
    full, full_lines = trained(tmp_path / "full", max_steps=3, tasks_per_step=4)

    assert any(line["frac_tokens_nonzero_advantage"] < 1 for line in lean_lines)
    assert [line["grad_norm"] for line in lean_lines] == pytest.approx(
        [line["grad_norm"] for line in full_lines], rel=1e-3
    )
    for name, weights in lean.state_dict().items():
        torch.testing.assert_close(weights, full.state_dict()[name], atol=1e-3, rtol=1e-2)


def test_a_step_in_which_every_group_is_equal_moves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tiny_runs.play_words", lambda model, task, seed: play_words(model, task, 7))
    before = digest_of(tiny_model())

    model, lines = trained(tmp_path, max_steps=2)

    assert lines[0]["frac_reward_zero_std"] == 1.0
    assert lines[0]["grad_norm"] == 0.0
    assert digest_of(model) == before


def test_a_tool_result_gets_no_gradient(tmp_path, monkeypatch):
    """What the world inserts (the `<turn>` at position 5) is scored neither by the policy nor by
    the gradient."""
    scored = []
    real = grpo.agent_logprobs

    def listen(model, input_ids, labels, *rest, **more):
        scored.append(labels)
        return real(model, input_ids, labels, *rest, **more)

    monkeypatch.setattr(grpo, "agent_logprobs", listen)
    trained(tmp_path, max_steps=1, demonstrations=())

    for labels in scored:
        is_scored = labels != -100
        assert not is_scored[:, :4].any()
        assert is_scored[:, 4].all()
        assert not is_scored[:, 5].any()
        assert is_scored[:, 6].all()


def test_the_bonus_is_learnt_from_but_the_metrics_are_about_the_rules(tmp_path, monkeypatch):
    def play_for_the_bonus(model, task, seed):
        played = play_words(model, task, seed)
        failed = replace(played.trajectory, outcome=Outcome(success=False, strict_success=False))
        return ScoredEpisode(failed, bonus=float(played.trajectory.token_ids[4] == 9))

    monkeypatch.setattr("tiny_runs.play_words", play_for_the_bonus)
    model, lines = trained(tmp_path, max_steps=40, tasks_per_step=4, group_size=8)

    episodes = [play_words(model, word_task(5, 9), seed) for seed in range(40)]
    assert (
        np.mean([played.trajectory.token_ids[4] == 9 for played in episodes]) > 0.2
    )  # one word of sixteen at the start
    assert np.mean([line["reward_mean"] for line in lines[-5:]]) < 0.3


def test_a_success_with_needless_calls_counts_as_success_and_as_no_strict_one(tmp_path, monkeypatch):
    def play_with_a_needless_call(model, task, seed):
        played = play_words(model, task, seed)
        return replace(played, trajectory=replace(played.trajectory, outcome=Outcome(True, seed % 2 == 0)))

    monkeypatch.setattr("tiny_runs.play_words", play_with_a_needless_call)
    _, lines = trained(tmp_path, max_steps=3)
    assert {line["success"] for line in lines} == {1.0}
    assert all(0 < line["strict_success"] < 1 for line in lines)


def test_a_kl_term_holds_the_policy_near_its_reference(tmp_path):
    _, free = trained(tmp_path / "free", max_steps=10)
    _, held = trained(tmp_path / "held", max_steps=10, beta=5.0)

    assert held[-1]["kl"] < free[-1]["kl"]


def test_a_run_with_a_kl_term_resumes_too(tmp_path):
    _, expected = train("grpo", tmp_path / "whole", beta=0.1)
    train("grpo", tmp_path / "cut", Death(after=7), beta=0.1)

    assert train("grpo", tmp_path / "cut", beta=0.1) == (0, expected)


def test_the_kl_estimate_is_worked_out_by_hand():
    # Token 1: policy 1/2, reference 1/4: 1/2 - 1 + ln 2 = 0.1931. Token 2: equal: 0. Mean 0.0966.
    assert kl_estimate([math.log(0.5), -1.0], [math.log(0.25), -1.0]) == pytest.approx((0.5 - 1 + math.log(2)) / 2)


def test_step_metrics_are_worked_out_by_hand():
    def episode(reward, results, num_written):
        messages = [Message("user", "?")]
        for result in results:
            messages += [Message("assistant", "call"), Message("tool", result)]
        messages.append(Message("assistant", "done"))
        mask = (0, *[1] * num_written)
        return Trajectory(
            "t",
            tuple(messages),
            StopReason.DONE,
            token_ids=mask,
            mask=mask,
            logprobs=(0.0, *[-0.5] * num_written),
            reward=reward,
        )

    episodes = [
        episode(1.0, ["{}"], 2),
        episode(0.0, ['{"error": "no"}', "{}"], 4),
        episode(0.5, [], 1),
        episode(0.5, [], 1),
    ]

    found = step_metrics(
        [
            ScoredEpisode(replace(episode, outcome=Outcome(episode.reward == 1, episode.reward == 1)))
            for episode in episodes
        ],
        rule_rewards_P_G=np.array([[1.0, 0.0], [0.5, 0.5]]),
        is_lost_P_G=np.zeros((2, 2), bool),
        advantages_P_G=np.array([[0.7, -0.7], [0.0, 0.0]]),
    )

    assert found["reward_mean"] == 0.5
    assert found["reward_std"] == pytest.approx(
        math.sqrt(0.5) / 2
    )  # std of (1, 0) with G-1 is sqrt(1/2), of (1/2, 1/2) is 0
    assert found["frac_reward_zero_std"] == found["frac_reward_zero_std_all_bad"] == 0.5
    assert found["frac_tokens_nonzero_advantage"] == 6 / 8
    assert found["success"] == 0.25
    assert found["turns"] == (2 + 3 + 1 + 1) / 4
    assert found["tool_failures"] == 1 / 3
    assert found["length"] == 2.0
    assert found["entropy"] == 0.5


def test_the_importance_weight_is_worked_out_by_hand():
    weights = importance_weights(torch.tensor([-1.0, -2.0, -1.0]), torch.tensor([-2.0, -1.0, -1.0]), cap=2.0)
    assert weights.tolist() == pytest.approx([2.0, 1 / math.e, 1.0])  # e is capped
    metrics = importance_metrics([0.0, 1.0, -0.5], [1, 1, 2], cap=2.0)
    assert metrics == {
        "importance_mean": pytest.approx((1 + 2 + math.exp(-0.5)) / 3),
        "importance_max": 2.0,
        "importance_capped_frac": 1 / 3,
        "logprob_gap_max": 1.0,
        "logprob_gap_turn": 0.5,  # of 0 and 1 in the first turn, and of -0.5 in the second
    }


def test_a_token_belongs_to_the_turn_that_it_was_written_in():
    is_scored = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 1, 0, 1]]).bool()
    assert turn_numbers(is_scored)[is_scored].tolist() == [1, 1, 2, 1, 2, 3]


def test_an_engine_that_overstates_its_tokens_is_corrected_token_by_token(tmp_path, monkeypatch):
    """The engine says log p + 1 of each token: every gradient is multiplied by 1/e, and the log
    says so."""

    def overstated(model, task, seed):
        played = play_words(model, task, seed)
        logprobs = [
            value + is_agents
            for value, is_agents in zip(played.trajectory.logprobs, played.trajectory.mask, strict=True)
        ]
        return replace(played, trajectory=replace(played.trajectory, logprobs=logprobs))

    _, [honest] = trained(tmp_path / "honest", max_steps=1)
    monkeypatch.setattr("tiny_runs.play_words", overstated)
    _, [corrected] = trained(tmp_path / "overstated", max_steps=1)

    assert honest["importance_mean"] == pytest.approx(1, abs=1e-5)
    assert corrected["importance_mean"] == pytest.approx(1 / math.e, rel=1e-5)
    assert corrected["logprob_gap_max"] == pytest.approx(1, abs=1e-5)
    assert corrected["grad_norm"] == pytest.approx(honest["grad_norm"] / math.e, rel=1e-4)


def test_a_lost_episode_teaches_nothing_and_counts_for_nothing(tmp_path, monkeypatch):
    def sometimes_lost(model, task, seed):
        played = play_words(model, task, seed)
        lost = replace(
            played.trajectory, stop_reason=StopReason.ENGINE_LOST, token_ids=(), mask=(), logprobs=(), reward=9.0
        )
        return replace(played, trajectory=lost) if seed % 4 == 0 else played

    monkeypatch.setattr("tiny_runs.play_words", sometimes_lost)
    _, lines = trained(tmp_path, max_steps=12)

    assert 0 < np.mean([line["lost"] for line in lines]) < 0.6
    assert all(line["reward_mean"] <= 1 for line in lines), "the 9 of a lost one is in no mean"


def test_one_step_ahead_each_batch_is_played_by_the_weights_before_the_last_step(tmp_path):
    _, lines = trained(tmp_path, max_steps=7, max_staleness=1, tasks_per_step=4, group_size=8)

    # A checkpoint is written after every 4th step: nothing is played ahead over it.
    assert [line["staleness"] for line in lines] == [0, 1, 1, 1, 0, 1, 1]
    assert max(line["logprob_gap_max"] for line in lines if line["staleness"] == 0) < 1e-5
    assert min(line["logprob_gap_max"] for line in lines if line["staleness"] == 1) > 1e-3


def test_a_run_that_plays_ahead_resumes_to_the_same_bytes(tmp_path):
    _, expected = train("grpo", tmp_path / "whole", max_staleness=1)
    train("grpo", tmp_path / "cut", Death(after=6), max_staleness=1)

    assert train("grpo", tmp_path / "cut", max_staleness=1) == (0, expected)
