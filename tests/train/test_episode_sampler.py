"""Weights that play: those of the last refresh, or of the first play where there was none. And
under which seeds."""

import pytest
import torch

from posttrain.rollout import episode_sampler
from posttrain.rollout.episode_sampler import EpisodeSampler, Stream, episode_seeds
from posttrain.types import StopReason
from tests.rewarding import EachAlone
from tests.rollout.lock_world import LIMITS, LockDomain, WordCodec, lock_task
from tests.rollout.tiny_models import tiny_model


class NoReward(EachAlone):
    def score(self, trajectory, task):
        return trajectory


def sampler_of(model):
    return EpisodeSampler(model, WordCodec(), domain=LockDomain(), reward=NoReward(), limits=LIMITS, temperature=0.0)


def logprobs_of(sampler):
    [played] = sampler.sample([lock_task()], [1])
    return played.logprobs


def change(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)


def test_weights_play_as_they_were_at_the_last_refresh():
    model = tiny_model("qwen3")
    sampler = sampler_of(model)
    before = logprobs_of(sampler)
    change(model)
    assert logprobs_of(sampler) == before
    sampler.refresh()
    assert logprobs_of(sampler) == logprobs_of(sampler_of(model)) != before


def test_the_first_refresh_takes_what_was_changed_since_the_sampler_was_made():
    model = tiny_model("qwen3")
    sampler = sampler_of(model)
    change(model)
    sampler.refresh()
    assert logprobs_of(sampler) == logprobs_of(sampler_of(model))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_episode_of_weights_that_are_no_numbers_is_lost(temperature):
    model = tiny_model("qwen3")
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    limits = LIMITS.model_copy(update={"max_aborted_frac": 1.0})
    sampler = EpisodeSampler(
        model, WordCodec(), domain=LockDomain(), reward=NoReward(), limits=limits, temperature=temperature
    )
    [played] = sampler.sample([lock_task()], [1])
    assert played.stop_reason == StopReason.ENGINE_LOST
    assert played.failure.startswith("TorchEngine gave a token of episode t/0/again the log-probability nan")


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_no_two_uses_of_a_run_draw_the_same_seeds(seed):
    numbers = [(seed,), (seed, 0), (seed, 1), (seed, 0, 0), (seed, 1, 0)]  # of a run, its steps, their refills
    lists = [tuple(episode_seeds(stream, *entropy, count=8)) for stream in Stream for entropy in numbers]

    assert len(set(lists)) == len(lists)
    assert len({one for seeds in lists for one in seeds}) == 8 * len(lists)


def test_a_zero_at_the_end_counts():
    assert episode_seeds(Stream.ONLINE, 1, count=4) != episode_seeds(Stream.ONLINE, 1, 0, count=4)


def test_the_same_numbers_give_the_same_seeds():
    assert episode_seeds(Stream.ONLINE, 1, 2, count=4) == episode_seeds(Stream.ONLINE, 1, 2, count=9)[:4]


def test_a_server_has_as_long_for_a_message_as_an_episode_may_take(monkeypatch):
    told = {}
    monkeypatch.setattr(episode_sampler, "make_engine", lambda *_, **how: told.update(how))
    sampler_of(tiny_model("qwen3")).refresh()
    assert told["message_seconds"] == LIMITS.max_seconds
