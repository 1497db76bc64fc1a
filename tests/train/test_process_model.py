"""The process model: where states are, their labels by plays on, what is learnt, and how it is
judged."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import play_words, tiny_model, tiny_reward_model, word_task
from tiny_runs import labelled_words, run_process_model

from posttrain.models.micro_batches import AtOnce
from posttrain.rollout.episode_sampler import EpisodeSampler
from posttrain.tracking.metrics_log import read_metrics
from posttrain.train.process_model import label_states, state_places, state_values
from posttrain.train.process_model_quality import (
    LabelledEpisode,
    auc,
    auc_over_tasks,
    error_propagation,
    judge,
    localisation,
    reliability,
)
from posttrain.train.resumable_trainer import METRICS, open_run
from posttrain.train.reward_model import score_episodes
from posttrain.types import Outcome, StopReason, Trajectory
from tests.limits import limits_of
from tests.rewarding import EachAlone
from tests.rollout.lock_world import LockDomain, WordCodec, arguments_of, call, lock_task, say
from tests.rollout.scripted_engine import ScriptedEngine

NAN = math.nan


def test_a_state_is_before_each_message_of_the_agents_and_behind_its_last():
    played = play_words(tiny_model(), word_task(4, 9), 1).trajectory
    assert state_places(played) == [3, 5, 6]
    assert state_places(replace(played, mask=[0, 0, 1, 1, 0, 1, 0])) == [1, 4, 5]
    assert state_places(replace(played, mask=[0] * 7)) == []


def test_one_pass_has_the_values_of_every_state_read_alone():
    model = tiny_reward_model()
    episodes = [one.trajectory for one in labelled_words(3)]  # no word is the padding's
    episodes.append(replace(episodes[0], token_ids=[*episodes[0].token_ids, 4, 5], mask=[*episodes[0].mask, 0, 0]))

    found = state_values(model, episodes)

    for one, values in zip(episodes, found, strict=True):
        alone = score_episodes(model, [one.token_ids[: place + 1] for place in state_places(one)])
        assert values.tolist() == pytest.approx([1 / (1 + math.exp(-score)) for score in alone], abs=1e-6)


# -- labels


class LockExpert:
    def reply(self, messages):
        return say("done") if any(one.role == "tool" for one in messages) else call("try_code", arguments_of("123"))


class KnownLocks(LockDomain):
    def expert(self, task, *, seed, is_flawless, reasoning_frac):
        return LockExpert()


def labelled(domain, monkeypatch):
    """Two episodes that try 111 and 222, or say done at once; of two branches behind the first try
    one opens."""
    monkeypatch.setattr("posttrain.train.online.branches.episode_seeds", lambda *_, count: [10])
    codec, right = WordCodec(), f"call try_code {arguments_of('123')}"
    script = {1: [f"call try_code {arguments_of(code)}" for code in ("111", "222")] + ["done"], 2: [right, "done"]}
    script |= {10: [right, "done"], 11: ["done"], 12: ["done"], 13: ["done"], 14: ["done"], 15: ["done"]}
    sampler = EpisodeSampler(None, codec, domain=domain, reward=Kept(), limits=limits_of(4, 8, 60), temperature=1.0)
    tries = {seed: [[*codec.ids(line), 0] for line in lines] for seed, lines in script.items()}
    sampler._engine = ScriptedEngine(tries)
    played = sampler.sample([lock_task()] * 2, [1, 2])
    [found], num_tokens = label_states(sampler, [lock_task()], played, branches=2, seed=1)
    assert num_tokens == sum(len(codec.ids(line)) + 1 for seed in range(10, 16) for line in script[seed])
    return found


class Kept(EachAlone):
    def score(self, trajectory, task):
        return replace(trajectory, reward=0.5)


def test_labels_are_shares_of_plays_on_between_the_tasks_own_share_and_the_outcome(monkeypatch):
    failed, opened = labelled(KnownLocks(), monkeypatch)
    # one of the two plays opens; behind 111 one of two does, behind 222 none; behind 123 it is open
    assert failed.labels.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert opened.labels.tolist() == [0.5, 1.0, 1.0]
    assert (failed.flawed_turn, failed.first_call) == (0, 0)
    assert (opened.flawed_turn, opened.trajectory.is_strict_success) == (None, True)


def test_a_world_without_an_expert_has_labels_and_no_flawed_turns(monkeypatch):
    monkeypatch.setattr(LockDomain, "expert", None)
    assert [one.flawed_turn for one in labelled(LockDomain(), monkeypatch)] == [None, None]


# -- what is learnt


def test_values_of_tasks_never_seen_come_near_their_labels(tmp_path):
    model = tiny_reward_model()
    with torch.no_grad():
        model.score.weight.zero_()
    with open_run(tmp_path, at_once=AtOnce(8)) as run:
        run_process_model(run, model, max_steps=60, checkpoint_every_steps=60, lr=2e-2)
    model.eval()

    held_out = labelled_words(40, seed=9)
    values = state_values(model, [one.trajectory for one in held_out])
    wanted = np.array([one.labels for one in held_out])
    assert np.abs(np.array(values)[:, 1:] - wanted[:, 1:]).mean() < 0.1  # at 1/2 it would be 1/2


def test_the_loss_is_a_mean_over_the_labelled_states_of_the_step(tmp_path):
    """However a step is cut, and a state without a label counts for nothing: at 1/2 each costs ln
    2."""
    losses = []
    for at_once in (1, 8):
        model = tiny_reward_model()
        with torch.no_grad():
            model.score.weight.zero_()
        with open_run(tmp_path / str(at_once), at_once=AtOnce(at_once)) as run:
            run_process_model(run, model, max_steps=2, checkpoint_every_steps=2)
        losses.append([line["loss"] for line in read_metrics(tmp_path / str(at_once) / METRICS)])
    assert losses[0][0] == pytest.approx(math.log(2), abs=1e-6)
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


# -- how it is judged


def episode(labels, flawed=None, *, outcome, first_call=0):
    played = Trajectory("t", (), StopReason.DONE, 1, outcome=Outcome(outcome != "failed", outcome == "strict"))
    return LabelledEpisode(played, np.array(labels, float), flawed, first_call)


FAILED = episode([0.8, 0.6, 0.1, 0.0], 1, outcome="failed", first_call=1)
STRICT = episode([0.8, 0.9, 1.0], outcome="strict")


def test_errors_are_at_and_behind_the_flawed_turn_and_nowhere_in_a_strict_success():
    assert error_propagation(FAILED, FAILED.labels).tolist() == [[0, -0.6], [1, -0.1], [1, 0]]
    assert error_propagation(STRICT, STRICT.labels).tolist() == [[0, -0.9], [0, -1]]
    assert localisation(FAILED, FAILED.labels) == pytest.approx(np.array([[0, 0.2], [1, 0.5], [0, 0.1]]))
    for one in (episode([1, 1], outcome="plain"), episode([1, 0], outcome="failed")):
        assert error_propagation(one, one.labels).shape == localisation(one, one.labels).shape == (0, 2)
    assert localisation(STRICT, STRICT.labels).shape == (0, 2)


def test_the_auc_counts_pairs_in_the_right_order():
    assert auc(np.array([[1, 3], [1, 1], [0, 1], [0, 0]])) == 3.5 / 4
    assert math.isnan(auc(np.array([[1, 3.0]])))


def test_the_interval_is_over_tasks():
    """A bootstrap over two tasks, one right and one wrong, may draw either one alone."""
    right, wrong = np.array([[1, 1.0], [0, 0.0]]), np.array([[1, 0.0], [0, 1.0]])
    assert auc_over_tasks([right, wrong]) == [0.5, 0.0, 1.0]
    assert auc_over_tasks([right, np.array([[0, NAN]])]) == [1.0, 1.0, 1.0]
    assert auc_over_tasks([np.array([[1, 1.0]])]) is None


def test_reliability_has_the_mean_value_and_label_of_each_bin():
    found = reliability(np.array([0.05, 0.07, 0.5, 1.0]), np.array([0.0, 0.5, 0.5, 1.0]))
    expected = [(2, 0.06, 0.25), (1, 0.5, 0.5), (1, 1.0, 1.0)]
    assert [tuple(one.values()) for one in found] == [pytest.approx(one) for one in expected]


def test_a_judgement_has_calibration_and_each_auc_beside_its_baselines():
    values = [[FAILED.labels * 0 + 0.5, STRICT.labels]]
    values.append([])  # of a task whose episodes were all aborted
    found = judge([[FAILED, replace(STRICT, labels=np.array([0.8, NAN, 1.0]))], []], values, has_expert=True)
    # of the failed one's states .3, .1, -.4, -.5 off, of the other's 0
    assert found["brier"] == pytest.approx((0.09 + 0.01 + 0.16 + 0.25) / 6)
    assert found["calibration_error"] == pytest.approx(4 * 0.125 / 6)
    assert (found["num_held_out_tasks"], found["num_held_out_states"]) == (2, 6)
    spread, found_where = found["error_propagation"], found["localisation"]
    assert (spread["num_turns"], spread["num_positive"], spread["model"][0]) == (5, 2, 5 / 6)
    assert (found_where["num_turns"], found_where["model"][0], found_where["labels"][0]) == (3, 0.5, 1.0)
    assert found_where["first_call"][0] == 1.0
    assert "localisation" not in judge([[STRICT]], [[STRICT.labels]], has_expert=False)
