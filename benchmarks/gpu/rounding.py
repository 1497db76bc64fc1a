"""An engine in bfloat16 samples; the trainer in bfloat16, and in float32, says what it would have
given for the same tokens. Servers are refused above `MAX_GAP`, which was set without a GPU."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.ground import Ground
from benchmarks.gpu.tokens import forward_gaps
from posttrain.models.loading import load_codec, load_model
from posttrain.models.precision import computing_in
from posttrain.rollout.engines.vllm_engine import MAX_GAP
from posttrain.rollout.episode_sampler import Stream, episode_seeds

NUM_TASKS = 128


def find(ground: Ground) -> Iterator[dict[str, Any]]:
    codec = load_codec(ground.trained)
    tasks = ground.domain.tasks("dev", 8 if ground.is_small else NUM_TASKS)
    in_bfloat16 = computing_in(load_model(ground.trained), "bfloat16")
    sampler = ground.sampler(in_bfloat16, codec, temperature=1.0)
    played = sampler.sample(tasks, episode_seeds(Stream.MEASUREMENT, 1, count=len(tasks)))
    for name, model in (("bfloat16", in_bfloat16), ("float32", load_model(ground.trained))):
        gaps = np.concatenate([forward_gaps(model, one) for one in played])
        yield {
            "trainer": name,
            "tokens": len(gaps),
            "gap_mean": float(gaps.mean()),
            "gap_of_999_in_1000": float(np.quantile(gaps, 0.999)),
            "gap_max": float(gaps.max()),
            **({"allowed": MAX_GAP[torch.bfloat16]} if name == "bfloat16" else {}),
        }
