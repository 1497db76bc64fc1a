"""The metrics of a step: by hand, all of them by their names, and what each is about."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tiny import play_words, word_task
from tiny_runs import run_here

from posttrain.train.advantages.groups import EpisodeGroup
from posttrain.train.online.metrics import advantage_metrics, episode_metrics, kl_estimate
from posttrain.train.online.updates import Sample
from posttrain.types import Message, Outcome, ScoredEpisode, StopReason, Trajectory

OF_EPISODES = {"entropy", "length", "lost", "success", "strict_success", "tool_failures", "turns"}
OF_GROUPS = {"definition_version", "reward_mean", "reward_std", "reward_std_batch", "frac_reward_zero_std"}
OF_GROUPS |= {f"frac_reward_zero_std_{which}" for which in ("all_bad", "all_good", "other")}
COUNTS = {
    f"groups_{what}"
    for what in ("played", "trained", "unneeded", "dropped_equal", "dropped_all_good", "too_small", "idle")
}
COUNTS |= {"frac_equal_trained", "joined", "generated_tokens"}
OF_CREDIT = {
    "frac_tokens_nonzero_advantage",
    "frac_trained_tokens_nonzero_advantage",
    "explained_variance",
    "value_loss",
}
OF_CREDIT |= {"branches_played", "branches_lost", "branch_tokens"}
OF_CREDIT |= {f"advantage_turn_{which}" for which in ("1", "2", "3", "later")}
OF_ENGINE = {"staleness", "logprob_gap_max", "logprob_gap_turn"}
OF_ENGINE |= {f"importance_{what}" for what in ("mean", "max", "capped_frac")}
OF_UPDATES = {
    "step",
    "lr",
    "updates",
    "skipped_updates",
    "grad_norm",
    "clip_low",
    "clip_high",
    "kl",
    "kl_weight",
    "demonstration_loss",
}


def test_every_step_writes_every_metric(tmp_path):
    _, lines = run_here("online", tmp_path, max_steps=3)
    first, second, last = (set(line) for line in lines)
    every = OF_EPISODES | OF_GROUPS | COUNTS | OF_CREDIT | OF_ENGINE | OF_UPDATES
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert second == every
    assert first == last == every | {"dev_success", "dev_strict_success", "forgotten"}


def test_before_the_first_step_the_policy_is_its_own_reference(tmp_path):
    _, lines = run_here("online", tmp_path, max_steps=3, tasks_per_step=4)
    assert lines[0]["kl"] == pytest.approx(0.0, abs=1e-9)
    assert lines[2]["kl"] > 0


def episode(reward, results, num_written):
    messages = [Message("user", "?")]
    for result in results:
        messages += [Message("assistant", "call"), Message("tool", result)]
    mask = (0, *[1] * num_written)
    return ScoredEpisode(
        Trajectory(
            "t",
            (*messages, Message("assistant", "done")),
            StopReason.DONE,
            token_ids=mask,
            mask=mask,
            logprobs=(0.0, *[-0.5] * num_written),
            reward=reward,
            outcome=Outcome(reward == 1, False),
        )
    )


def test_metrics_of_episodes_are_worked_out_by_hand():
    played = [
        episode(1.0, ["{}"], 2),
        episode(0.0, ['{"error": "no"}', "{}"], 4),
        episode(0.5, [], 1),
        episode(0.5, [], 1),
    ]
    found = episode_metrics([EpisodeGroup(word_task(5, 9), played[:2]), EpisodeGroup(word_task(6, 9), played[2:])])
    assert found["reward_mean"] == 0.5
    assert found["reward_std"] == pytest.approx(
        math.sqrt(0.5) / 2
    )  # std of (1, 0) with G-1 is sqrt(1/2), of (1/2, 1/2) is 0
    assert found["frac_reward_zero_std"] == found["frac_reward_zero_std_all_bad"] == 0.5
    assert (found["success"], found["strict_success"]) == (0.25, 0.0)
    assert found["turns"] == (2 + 3 + 1 + 1) / 4
    assert found["tool_failures"] == 1 / 3
    assert found["length"] == 2.0
    assert found["entropy"] == 0.5
    assert "learnt_reward_mean" not in found
    helped = [replace(one, bonus=0.25) for one in played]
    assert episode_metrics([EpisodeGroup(word_task(5, 9), helped)])["learnt_reward_mean"] == 0.75


def test_tokens_with_an_advantage_and_its_size_by_turn_are_worked_out_by_hand():
    """Eight tokens of the agent's are trained: 2 and 3 in an episode of two turns have an
    advantage; 3 are not, and have none. An episode that joined is in no figure."""

    def written(*mask):
        played = episode(1.0, [], len(mask))
        return replace(played, trajectory=replace(played.trajectory, mask=mask, token_ids=mask, logprobs=mask))

    two_turns, one_turn = written(0, 1, 1, 0, 1, 1, 1), written(0, 1, 1, 1)
    group = EpisodeGroup(word_task(5, 9), [two_turns, one_turn], [one_turn])
    advantages = [[0.5, 0.5, -0.1, -0.1, -0.1], [0.0, 1e-9, 0.0], [9.0, 9.0, 9.0]]
    members = [Sample(one, np.array(of_one)) for one, of_one in zip(group.members, advantages, strict=True)]
    other, idle = EpisodeGroup(word_task(6, 9), [one_turn]), [Sample(one_turn, np.zeros(3))]
    assert advantage_metrics([group, other], [True, False], [members, idle]) == {
        "frac_tokens_nonzero_advantage": 5 / 11,
        "frac_trained_tokens_nonzero_advantage": 5 / 8,
        "advantage_turn_1": pytest.approx((2 * 0.5 + 6 * 0) / 8),
        "advantage_turn_2": pytest.approx(0.1),
        "advantage_turn_3": 0.0,
        "advantage_turn_later": 0.0,
    }


def test_the_kl_estimate_is_worked_out_by_hand():
    # Token 1: policy 1/2, reference 1/4: 1/2 - 1 + ln 2 = 0.1931. Token 2: equal: 0. Mean 0.0966.
    assert kl_estimate([math.log(0.5), -1.0], [math.log(0.25), -1.0]) == pytest.approx((0.5 - 1 + math.log(2)) / 2)


def test_the_bonus_is_learnt_from_but_the_metrics_are_about_the_rules(tmp_path, monkeypatch):
    def play_for_the_bonus(model, task, seed):
        played = play_words(model, task, seed)
        failed = replace(played.trajectory, outcome=Outcome(success=False, strict_success=False))
        return ScoredEpisode(failed, bonus=float(played.trajectory.token_ids[4] == 9))

    monkeypatch.setattr("tiny_runs.play_words", play_for_the_bonus)
    model, lines = run_here("online", tmp_path, max_steps=16, tasks_per_step=4, group_size=8, lr=0.1)

    episodes = [play_words(model, word_task(5, 9), seed) for seed in range(40)]
    assert (
        np.mean([played.trajectory.token_ids[4] == 9 for played in episodes]) > 0.2
    )  # one word of sixteen at the start
    assert np.mean([line["reward_mean"] for line in lines[-5:]]) < 0.3
