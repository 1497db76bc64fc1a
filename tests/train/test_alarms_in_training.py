"""Failures planted in real trainings of a tiny model: each raises its alarm within five steps."""

from dataclasses import replace

import pytest
import yaml
from tiny import play_words, tiny_model
from tiny_runs import run_online

from posttrain.tracking.alarms import Alarms, read_alarms
from posttrain.tracking.metrics_log import read_metrics
from posttrain.tracking.params import AlarmParams
from posttrain.train.resumable_trainer import open_run
from posttrain.types import Outcome

NUM_EPISODES = 32  # of a step


@pytest.fixture
def limits(repository):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    return content["train_policy"]["alarms"]


@pytest.fixture
def trained(tmp_path, limits, monkeypatch):
    """`trained(planted, after=6)` gives steps and rules of the alarms of a training whose episodes
    are as `planted` makes them from the seventh step on, and before as `healthy` does."""

    def run(planted, *, after, healthy=lambda played: played, lr=1e-3, max_steps=11):
        num_played = 0

        def play(model, task, seed):
            nonlocal num_played
            num_played += 1
            played = healthy(play_words(model, task, seed))
            return planted(played) if num_played > after * NUM_EPISODES else played

        monkeypatch.setattr("tiny_runs.play_words", play)
        with open_run(tmp_path, alarms=Alarms(AlarmParams.model_validate(limits), on_alarm="warn")) as started:
            run_online(started, tiny_model(), tasks_per_step=4, group_size=8, lr=lr, max_steps=max_steps)
        return [(step, name) for step, name, _ in read_alarms(read_metrics(tmp_path / "metrics.jsonl"))]

    return run


def with_reward(played, reward):
    return replace(played, trajectory=replace(played.trajectory, reward=reward))


def test_a_training_in_which_nothing_is_planted_raises_nothing(trained):
    assert trained(lambda played: played, after=6) == []


def test_a_reward_that_is_the_same_for_all_is_told(trained):
    alarms = trained(lambda played: with_reward(played, 0.5), after=6)

    assert {name for _, name in alarms} == {"zero_std", "no_signal"}
    assert all(6 < step <= 11 for step, _ in alarms)


def test_an_engine_that_misstates_its_second_turn_is_told(trained):
    """The first turn is as it should be: the mean over all tokens would be below the limit."""

    def misstated(played):
        logprobs = list(played.trajectory.logprobs)
        logprobs[6] -= 0.15
        return replace(played, trajectory=replace(played.trajectory, logprobs=logprobs))

    [(step, name)] = trained(misstated, after=6)
    assert (name, 6 < step <= 11) == ("engine_mismatch", True)


def test_a_reward_that_pays_for_something_else_than_success_is_told(trained):
    """Success is the same word twice, which half of the episodes have learnt when the reward turns:
    what they write now earns less than anything else."""

    def same_word(played):
        reward = sum(token == 9 for token in (played.trajectory.token_ids[4], played.trajectory.token_ids[6])) / 2
        outcome = Outcome(reward == 1, reward == 1)
        return with_reward(replace(played, trajectory=replace(played.trajectory, outcome=outcome)), reward)

    def turned(played):
        return with_reward(played, 2 - played.trajectory.reward)

    alarms = trained(turned, after=8, healthy=same_word, lr=0.1, max_steps=20)
    [step] = [step for step, name in alarms if name == "reward_hacking"]
    assert 8 < step <= 13


def test_a_learning_rate_that_destroys_the_policy_is_told(trained):
    """KL runs away with the first step; then one episode is left of all."""
    alarms = trained(lambda played: played, after=0, lr=3.0)

    assert min(step for step, name in alarms if name == "kl") <= 5
    assert {"entropy_collapse", "zero_std", "forgetting"} <= {name for _, name in alarms}
