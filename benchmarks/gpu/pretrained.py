"""SmolLM2-135M-Instruct through SFT and learning online to evaluation in both phrasings, with the
knobs of `benchmarks.pretrained`, and more steps online."""

from collections.abc import Iterator
from typing import Any

from benchmarks.arms import REPOSITORY
from benchmarks.gpu.ground import Ground, encoded
from benchmarks.pretrained import KNOBS, MODEL, SPLITS, success_on
from posttrain.config.params import Params
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec, load_model, load_pretrained, save_model
from posttrain.models.params import PretrainedModel
from posttrain.train.trainable import load_trainable, save_trained
from posttrain.worlds.catalog import make_domain

OWN: dict[str, Any] = {  # what takes the time on a card are the launches of so small a model
    "model.dtype": "bfloat16",
    "train_sft.max_steps": 100,
    "train_sft.eval_every_steps": 100,
    "train_policy.begin_with": None,
    "train_policy.algorithm.max_steps": 6,
    "train_policy.algorithm.group_size": 8,
    "world.num_rl_tasks": 48,
}
SMALLER: dict[str, Any] = {
    "train_sft.max_steps": 2,
    "train_sft.eval_every_steps": 2,
    "world.num_sft_tasks": 16,
    "world.num_test_tasks": 4,
    "train_policy.algorithm.tasks_per_step": 2,
}


def find(ground: Ground) -> Iterator[dict[str, Any]]:
    if not (REPOSITORY / MODEL).exists():
        yield {"skipped": f"there is no {MODEL}: posttrain get-model smollm2 on a machine that reaches a registry"}
        return
    params = ground.checkout_with({**KNOBS, **(SMALLER if ground.is_small else OWN)})
    assert isinstance(params.model, PretrainedModel)
    base, learnt = ground.folder / "base", ground.folder / "sft-model"
    model, tokenizer = load_pretrained(params.model.model_copy(update={"name": str(REPOSITORY / MODEL)}))
    save_model(model, tokenizer, base)
    codec = load_codec(base)
    rows = encoded(codec, ground.demonstrations(params.world.num_sft_tasks, params=params))

    model = load_trainable(base, params.model, seed=1)
    losses, seconds = ground.sft(model, codec, rows, params)
    steps = params.train_sft.max_steps
    tokens = sum(len(row.input_ids) for row in rows) / len(rows) * steps * params.train_sft.batch_size
    yield {
        "what": "sft",
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "seconds": round(seconds, 1),
        "tokens_per_s": round(tokens / seconds),
    }
    save_trained(model, codec.tokenizer, learnt)
    yield {"policy": "sft", **_success(ground, params, load_model(learnt, dtype=params.model.dtype), codec)}

    model = load_trainable(learnt, params.model, seed=1)
    metrics, seconds = ground.online(model, codec, params)
    yield {
        "what": "online",
        "reward_of_steps": [round(step["reward_mean"], 3) for step in metrics],
        "seconds_a_step": round(seconds / len(metrics), 2),
    }
    save_trained(model, codec.tokenizer, ground.folder / "policy-model")
    policy = load_model(ground.folder / "policy-model", dtype=params.model.dtype)
    yield {"policy": "policy", **_success(ground, params, policy, codec)}


def _success(ground: Ground, params: Params, model: Any, codec: ChatCodec) -> dict[str, Any]:
    """Success of greedy episodes, with intervals."""
    sampler, domain = ground.sampler(model, codec, temperature=0.0, params=params), make_domain(params.world)
    num_tasks = params.world.num_test_tasks
    return {split: success_on(domain.tasks(split, num_tasks), sampler, seed=1) for split in SPLITS}
