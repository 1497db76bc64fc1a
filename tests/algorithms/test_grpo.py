import math

import numpy as np
import pytest
import torch
from tiny import play_words, tiny_model, word_task
from tiny_runs import digest_of, run_grpo, train

from posttrain.algorithms import grpo
from posttrain.algorithms.grpo_metrics import kl_estimate, step_metrics
from posttrain.algorithms.resumable import open_run
from posttrain.tracking.metrics_log import read_metrics
from posttrain.types import Message, StopReason, Trajectory

FLAT = {"entropy", "kl", "length", "success", "turns", "tool_failures", "lr", "grad_norm", "step", "definition_version", "reward_mean", "reward_std"}
GROUPS = {"reward_std_batch", "frac_reward_zero_std", "frac_tokens_nonzero_advantage"}
GROUPS |= {f"frac_reward_zero_std_{which}" for which in ("all_bad", "all_good", "other")}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def trained(folder, model=None, **changes):
    model = model or tiny_model()
    with open_run(folder) as run:
        run_grpo(run, model, **changes)
    return model, read_metrics(folder / "metrics.jsonl")


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
    assert [line["grad_norm"] for line in lean_lines] == pytest.approx([line["grad_norm"] for line in full_lines], rel=1e-3)
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
    """What the world inserts (the `<turn>` at position 5) is scored neither by the policy nor by the gradient."""
    scored = []
    real = grpo.agent_logprobs

    def listen(model, input_ids, labels, *rest, **more):
        scored.append(labels)
        return real(model, input_ids, labels, *rest, **more)

    monkeypatch.setattr(grpo, "agent_logprobs", listen)
    trained(tmp_path, max_steps=1)

    for labels in scored:
        is_scored = labels != -100
        assert not is_scored[:, :4].any()
        assert is_scored[:, 4].all()
        assert not is_scored[:, 5].any()
        assert is_scored[:, 6].all()


def test_the_bonus_is_learnt_from_but_the_metrics_are_about_the_rules(tmp_path, monkeypatch):
    def play_for_the_bonus(model, task, seed):
        played = play_words(model, task, seed)
        return grpo.Played(played.trajectory, is_success=False, bonus=float(played.trajectory.token_ids[4] == 9))

    monkeypatch.setattr("tiny_runs.play_words", play_for_the_bonus)
    model, lines = trained(tmp_path, max_steps=40, tasks_per_step=4, group_size=8)

    episodes = [play_words(model, word_task(5, 9), seed) for seed in range(40)]
    assert np.mean([played.trajectory.token_ids[4] == 9 for played in episodes]) > 0.2  # one word of sixteen at the start
    assert np.mean([line["reward_mean"] for line in lines[-5:]]) < 0.3


def test_a_kl_term_holds_the_policy_near_its_reference(tmp_path):
    _, free = trained(tmp_path / "free", max_steps=10)
    _, held = trained(tmp_path / "held", max_steps=10, beta=5.0)

    assert held[-1]["kl"] < free[-1]["kl"]


def test_a_run_with_a_kl_term_resumes_too(tmp_path):
    from tiny_runs import Death

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
        return Trajectory("t", tuple(messages), StopReason.DONE, token_ids=mask, mask=mask, logprobs=(0.0, *[-0.5] * num_written), reward=reward)

    episodes = [episode(1.0, ["{}"], 2), episode(0.0, ['{"error": "no"}', "{}"], 4), episode(0.5, [], 1), episode(0.5, [], 1)]

    found = step_metrics(
        episodes,
        rule_rewards_P_G=np.array([[1.0, 0.0], [0.5, 0.5]]),
        success_PG=[True, False, False, False],
        advantages_P_G=np.array([[0.7, -0.7], [0.0, 0.0]]),
    )

    assert found["reward_mean"] == 0.5
    assert found["reward_std"] == pytest.approx(math.sqrt(0.5) / 2)  # std of (1, 0) with G-1 is sqrt(1/2), of (1/2, 1/2) is 0
    assert found["frac_reward_zero_std"] == found["frac_reward_zero_std_all_bad"] == 0.5
    assert found["frac_tokens_nonzero_advantage"] == 6 / 8
    assert found["success"] == 0.25
    assert found["turns"] == (2 + 3 + 1 + 1) / 4
    assert found["tool_failures"] == 1 / 3
    assert found["length"] == 2.0
    assert found["entropy"] == 0.5
