"""Whose weights play: those of the last refresh, or of the first play where there was none."""

import torch

from posttrain.algorithms.episode_sampler import EpisodeSampler
from tests.rollout.lock_world import LIMITS, LockDomain, WordCodec, lock_task
from tests.rollout.tiny_models import tiny_model


class NoReward:
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
