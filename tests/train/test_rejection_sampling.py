"""Rejection-sampling fine-tuning: what is accepted, how often it is learnt, and rounds that die."""

import json
import math
import os
import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from tiny import play_words_greedily, tiny_model
from tiny_runs import Death, WordEpisodes, run_here, train

from posttrain.config.params import parse_params
from posttrain.rollout.reflection import RetryTask
from posttrain.runtime.exits import DataError
from posttrain.train.rejection_sampling import rounds
from posttrain.train.rejection_sampling.params import RejectionSamplingParams
from posttrain.train.rejection_sampling.selection import row_weights
from posttrain.types import Outcome, ScoredEpisode, StopReason, Trajectory

KILLED = -signal.SIGKILL


def knobs(**changes):
    values = yaml.safe_load(RejectionSamplingParams.example) | {"type": "rejection_sampling", "samples_per_task": 4}
    return RejectionSamplingParams.model_validate(values | changes)


def episode(task, reward, *, strict=None, logprob=-1.0, stop=StopReason.DONE):
    """An episode of two tokens; a success at a reward of 1."""
    is_won = reward >= 1
    outcome = Outcome(success=is_won, strict_success=is_won if strict is None else strict)
    two = {"token_ids": (7, 8), "mask": (0, 1), "logprobs": (0.0, logprob)}
    return ScoredEpisode(Trajectory(task, (), stop, reward=reward, outcome=outcome, **two))


EASY_AND_HARD = [episode("easy", won) for won in (1, 1, 1, 0)] + [episode("hard", won) for won in (0, 1, 0, 0)]


@pytest.mark.parametrize(
    ("balance", "easy", "hard"), [("episode", 1 / 4, 1 / 4), ("task", 1 / 6, 1 / 2), ("difficulty", 1 / 6, 1 / 2)]
)
def test_weights_of_the_docstring(balance, easy, hard):
    weights_N = row_weights(EASY_AND_HARD, knobs(balance=balance))
    assert weights_N == pytest.approx([easy, easy, easy, 0, 0, hard, 0, 0])


def test_difficulty_weighs_tasks_by_the_density_of_how_many_are_right():
    """k of 4 right: exp(-(k - 2)² / 2), so 4 of 4 to 2 of 4 as e^-2 to 1."""
    episodes = [episode("sure", 1)] * 4 + [episode("even", won) for won in (1, 1, 0, 0)]
    weights_N = row_weights(episodes, knobs(balance="difficulty"))
    assert weights_N[:4].sum() / weights_N[4:].sum() == pytest.approx(math.exp(-2))


def test_what_is_accepted():
    strict, loose = episode("a", 1), episode("a", 1, strict=False)
    poor, lost = episode("b", 0.4), episode("b", 1, stop=StopReason.ENGINE_LOST)
    episodes = [strict, loose, poor, lost]

    def accepted(**accept):
        return row_weights(episodes, knobs(accept=accept, balance="episode")).astype(bool).tolist()

    assert accepted(type="success") == [True, True, False, False]
    assert accepted(type="strict") == [True, False, False, False]
    assert accepted(type="quantile", quantile=0.5) == [True, True, False, False]
    assert accepted(type="by_reward", temperature=0.2) == [True, True, True, False]
    by_reward = row_weights(episodes, knobs(accept={"type": "by_reward", "temperature": 0.2}, balance="episode"))
    assert by_reward[2] / by_reward[0] == pytest.approx(math.exp(-0.6 / 0.2))


def test_equal_rewards_accept_nothing_by_quantile():
    assert not row_weights([episode("a", 0.5)] * 3, knobs(accept={"type": "quantile", "quantile": 0.5})).any()


def test_the_likeliest_success_of_a_task_is_the_one_of_the_highest_mean_log_probability():
    episodes = [episode("a", 1, logprob=-2.0), episode("a", 1, logprob=-0.5), episode("a", 0, logprob=-0.1)]
    assert row_weights(episodes, knobs(per_task="likeliest")).tolist() == [0, 1, 0]


@pytest.mark.parametrize("balance", ["episode", "task", "difficulty"])
@pytest.mark.parametrize("per_task", ["all", "likeliest"])
@pytest.mark.parametrize("accept", [{"type": "success"}, {"type": "by_reward", "temperature": 0.01}])
def test_weights_are_shares(balance, per_task, accept):
    for num in range(10):
        rng = np.random.default_rng(num)
        drawn = zip(rng.choice(list("abc"), num), rng.choice([0, 0.3, 1], num), rng.random(num) < 0.3, strict=True)
        episodes = [
            episode(task, reward, stop=StopReason.ENGINE_LOST if is_aborted else StopReason.DONE)
            for task, reward, is_aborted in drawn
        ]
        weights_N = row_weights(episodes, knobs(balance=balance, per_task=per_task, accept=accept))
        assert np.isfinite(weights_N).all()
        assert (weights_N >= 0).all()
        assert weights_N.sum() == pytest.approx(1) or not weights_N.any()
        assert not any(weight for weight, one in zip(weights_N, episodes, strict=True) if one.is_aborted)


def test_the_policy_learns_from_its_own_successes(tmp_path):
    _, lines = run_here("rejection_sampling", tmp_path)
    first, second = (line for line in lines if "round" in line)
    assert first["accepted"] < second["accepted"]
    assert second["reward_mean"] > first["reward_mean"]  # over both rounds
    assert 100 <= first["generated_tokens"] < 100 + 32  # a batch has 16 episodes of two tokens
    assert [line["step"] for line in lines if "dev_success" in line] == [0, 8, 16]
    steps = [line["step"] for line in lines]
    assert steps == sorted(steps)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 17))


def test_a_round_without_a_success_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"none of the 16 episodes up to round 1 was accepted.*max_generated_tokens"):
        run_here("rejection_sampling", tmp_path, accept={"type": "success"}, max_generated_tokens=20)


def test_episodes_without_a_token_end_the_play_with_the_reason(tmp_path, monkeypatch):
    nothing = ScoredEpisode(Trajectory("4 9", (), StopReason.TOKEN_LIMIT, reward=0.0, outcome=Outcome(False, False)))
    monkeypatch.setattr(WordEpisodes, "run", lambda self, tasks, seeds: [nothing] * len(tasks))
    with pytest.raises(DataError, match=r"16 episodes wrote no token: agent\.max_context_tokens"):
        run_here("rejection_sampling", tmp_path)


REFLECTION = {"type": "reflection", "prompt": "That was not right."}
RETRIES = [{"type": "again"}, REFLECTION]


@pytest.mark.parametrize("retry", RETRIES, ids=lambda one: one["type"])
def test_failures_are_tried_again_and_what_comes_of_it_is_counted(retry, tmp_path):
    played = []
    _, lines = run_here("rejection_sampling", tmp_path, retry=retry, on_step=lambda *one: played.append(one))
    first = next(line for line in lines if "round" in line)
    batches = [read(line) for line in (tmp_path / "round-1/played.jsonl").read_text().splitlines()]
    num_failed = [sum(not one for one in batch[:16]) for batch in batches]
    each = 1 if retry["type"] == "again" else 2  # episodes for a failure
    assert [len(batch) for batch in batches] == [16 + each * num for num in num_failed]
    retries = [one for batch, num in zip(batches, num_failed, strict=True) for one in batch[len(batch) - num :]]
    assert (first["played"], first["retried"]) == (16 * len(batches), sum(num_failed))
    assert first["turned"] == pytest.approx(sum(retries) / len(retries))
    assert first["generated_tokens"] == 2 * sum(map(len, batches))  # reflections and retries are paid for
    # reflections are no episodes of the task: nobody is shown them, and none is a row
    assert [len(episodes) for _, episodes, _ in played[: len(batches)]] == [16 + num for num in num_failed]
    assert first["success"] == pytest.approx(1 - sum(num_failed) / (16 * len(batches)))


def read(line):
    """The successes of a batch's episodes."""
    return [one["outcome"]["success"] for one in json.loads(line)]


def test_only_a_retry_that_is_accepted_becomes_a_row(tmp_path, monkeypatch):
    """Every first try fails and every retry succeeds: the rows are the retries."""

    model = tiny_model()

    def run(_self, tasks, seeds):
        is_retry = [isinstance(task, RetryTask) and not task.is_reflection for task in tasks]
        return [
            replace(one, trajectory=replace(one.trajectory, seed=seed, mask=(0, 0, 0, 0, 1, 0, 1), **won(is_one)))
            for one, seed, is_one in zip(
                [play_words_greedily(model, task) for task in tasks], seeds, is_retry, strict=True
            )
        ]

    def won(is_one):
        return {"outcome": Outcome(is_one, is_one), "reward": float(is_one)}

    monkeypatch.setattr(WordEpisodes, "run", run)
    _, lines = run_here("rejection_sampling", tmp_path, retry=REFLECTION, accept={"type": "success"}, max_steps=1)
    first = next(line for line in lines if "round" in line)
    assert (first["success"], first["turned"]) == (0, 1)
    assert first["accepted"] == first["retry_rows"] == first["retried"] == first["played"]


@pytest.mark.needs_killed
@pytest.mark.xdist_group("rejection_sampling")
@pytest.mark.parametrize("retry", RETRIES, ids=lambda one: one["type"])
def test_a_run_with_retries_that_died_in_play_or_learning_ends_with_the_same_bytes(retry, tmp_path):
    code, expected = train("rejection_sampling", tmp_path / "whole", retry=retry)
    assert code == 0
    for name, batch, death in (("play", 2, Death()), ("learning", 99, Death(after=13))):
        how = {"retry": retry, "on_step": partial(die_in_batch, tmp_path / name, batch)}
        died, _ = train("rejection_sampling", tmp_path / name, death, **how)
        assert (died, *train("rejection_sampling", tmp_path / name, **how)) == (KILLED, 0, expected)


def rows_learnt(folder, monkeypatch, **changes):
    """The rows of the first round and the share of each."""
    seen = []
    monkeypatch.setattr(rounds, "train_sft", lambda *_, **inputs: seen.append(inputs))
    run_here("rejection_sampling", folder, **changes)
    first = seen[0]
    return first["rows"][: len(first["shares"]) - 1], list(first["shares"].values())[:-1], first["params"]


def test_failed_episodes_are_observed_without_the_agents_tokens_and_as_often_as_they_were_played(tmp_path, monkeypatch):
    accepted, _, _ = rows_learnt(tmp_path / "accepted", monkeypatch)
    rows, shares, params = rows_learnt(
        tmp_path / "all", monkeypatch, observation_weight=0.5, observations_of="all", replay_frac=0.5
    )
    num = len(accepted)
    assert params.observation_weight == 0.5
    assert rows[:num] == accepted
    assert {(*row.mask, *row.category) for row in rows[:num]} == {(0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 4, 1)}
    assert {(*row.mask, *row.category) for row in rows[num:]} == {(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0)}
    assert sum(shares) == pytest.approx(0.5)  # the other half is replayed
    assert sum(shares[:num]) / sum(shares) == pytest.approx(num / len(rows))
    assert len(set(shares[num:])) == 1


def test_rows_to_observe_without_a_weight_are_refused():
    with pytest.raises(ValueError, match="observations_of is all and observation_weight 0"):
        knobs(observations_of="all")


@pytest.fixture(scope="module", params=["rejection_sampling", "phases"])
def uninterrupted(request, tmp_path_factory):
    code, result = train(request.param, tmp_path_factory.mktemp(request.param))
    assert code == 0
    return request.param, result


@pytest.mark.needs_killed
@pytest.mark.xdist_group("rejection_sampling")
@pytest.mark.parametrize(
    "death", [Death(after=3), Death(after=8), Death(after=13), Death(in_save=8), Death(asked=10)], ids=str
)
def test_a_run_that_died_reaches_the_same_weights_and_metrics(uninterrupted, death, tmp_path):
    algorithm, expected = uninterrupted
    died, _ = train(algorithm, tmp_path, death)
    ended, result = train(algorithm, tmp_path)
    assert died == (75 if death.asked else KILLED)
    assert (ended, result) == (0, expected)


@pytest.mark.needs_killed
@pytest.mark.xdist_group("rejection_sampling")
@pytest.mark.parametrize("batch", [1, 3, 4, 6])
def test_a_run_that_died_while_it_played_plays_only_what_is_missing(uninterrupted, batch, tmp_path):
    algorithm, expected = uninterrupted
    if algorithm != "rejection_sampling":
        pytest.skip("plays as this one does")
    on_step = partial(die_in_batch, tmp_path, batch)
    died, _ = train(algorithm, tmp_path, on_step=on_step)
    ended, result = train(algorithm, tmp_path, on_step=on_step)
    assert (died, ended, result) == (KILLED, 0, expected)
    num_batches = sum(len(Path(file).read_text().splitlines()) for file in tmp_path.glob("round-*/played.jsonl"))
    assert (tmp_path / "seen").stat().st_size == num_batches


def die_in_batch(folder, batch, step, episodes, successes):
    """Once, when that many batches were played; the line of the next one is cut off."""
    seen = folder / "seen"
    with seen.open("a") as file:
        file.write("x")
    if seen.stat().st_size == batch and not (folder / "died").exists():
        (folder / "died").touch()
        with max(folder.glob("round-*/played.jsonl"), key=str).open("ab") as lines:
            lines.write(b'[{"bonus": 0.0, "task')
        os.kill(os.getpid(), signal.SIGKILL)


PAGE = (Path(__file__).parents[2] / "docs/self-improvement.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(train_policy:.*?)```", PAGE, re.DOTALL))
def test_each_block_of_the_page_is_accepted(repository, block):
    content = yaml.safe_load((repository / "params.yaml").read_text(encoding="utf-8"))
    content["train_policy"] |= yaml.safe_load(block)["train_policy"]
    parse_params(content, source="the page")


def test_the_page_has_the_knobs_of_the_example_and_names_every_choice_of_accept():
    first = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])["train_policy"]["algorithm"]
    assert first == {"type": "rejection_sampling", **yaml.safe_load(RejectionSamplingParams.example)}
    named = [yaml.safe_load(text) for text in re.findall(r"`accept: ([^`]+)`", PAGE)]
    assert [knobs(accept=one).accept.type for one in named] == ["success", "strict", "quantile", "by_reward"]
