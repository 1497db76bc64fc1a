"""A small model, trained where models live here, plays on the device and on the processor: the
tokens it writes greedily, and the log-probabilities of those."""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.ground import Ground
from posttrain.models.loading import load_codec, load_model, load_on_cpu
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.types import Trajectory

NUM_TASKS = 64


def find(ground: Ground) -> Iterator[dict[str, Any]]:
    codec = load_codec(ground.trained)
    tasks = ground.domain.tasks("dev", 8 if ground.is_small else NUM_TASKS)
    seeds = episode_seeds(Stream.MEASUREMENT, 1, count=len(tasks))
    models = {"device": load_model(ground.trained), "processor": load_on_cpu(ground.trained)}
    played = {
        name: ground.sampler(model, codec, temperature=0.0).sample(tasks, seeds) for name, model in models.items()
    }
    both = list(zip(played["device"], played["processor"], strict=True))
    whole = [gap for one in played["device"] for gap in forward_gaps(models["device"], one)]
    yield {
        "device": str(models["device"].device),
        "episodes": len(both),
        "episodes_of_the_same_tokens": sum(one.token_ids == other.token_ids for one, other in both),
        "success": {name: sum(one.is_success for one in plays) for name, plays in played.items()},
        "logprob_gap_max": max(gap for one, other in both for gap in _gaps(one, other)),
        "logprob_gap_max_to_a_forward_pass": max(whole),
    }


def _gaps(one: Trajectory, other: Trajectory) -> list[float]:
    """Agreement of what both wrote, as far as they wrote the same."""
    gaps = []
    for first, second, is_written, p, q in zip(
        one.token_ids, other.token_ids, one.mask, one.logprobs, other.logprobs, strict=False
    ):
        if first != second:
            break
        gaps += [abs(p - q)] if is_written else []
    return gaps


@torch.no_grad()
def forward_gaps(model: Any, played: Trajectory) -> list[float]:
    """For each token that the agent wrote, its recorded log-probability against the model's whole
    forward pass."""
    ids = torch.tensor([played.token_ids], device=model.device)
    logits_T_V = model(input_ids=ids).logits[0, :-1].float()
    logprobs_T = torch.log_softmax(logits_T_V, -1).gather(1, ids[0, 1:, None])[:, 0].cpu()
    written = torch.tensor(played.mask[1:]).bool()
    gaps: list[float] = (logprobs_T - torch.tensor(played.logprobs[1:]))[written].abs().tolist()
    return gaps
