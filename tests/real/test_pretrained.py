"""The real weights of SmolLM2-135M-Instruct through a step of each way to learn, in minutes.

`make test NEEDS=pretrained`. How far it gets in an hour: `make pretrained`.
"""

import pytest
import torch

from benchmarks.gpu.ground import encoded
from posttrain.models.loading import load_codec, load_model
from posttrain.train.trainable import load_trainable, save_trained

pytest_plugins = ["tests.real.smollm2_fixtures"]
pytestmark = pytest.mark.needs_pretrained
SHORT = {
    "world.num_sft_tasks": 16,
    "world.num_rl_tasks": 16,
    "train_sft.max_steps": 3,
    "train_sft.batch_size": 4,
    "train_sft.eval_every_steps": 3,
    "train_policy.begin_with": None,
    "train_policy.algorithm.max_steps": 1,
    "train_policy.algorithm.tasks_per_step": 2,
    "train_policy.algorithm.group_size": 4,
    "train_policy.checkpoint_every_steps": 1,
    "agent.max_new_tokens": 32,
}


def test_it_writes_english_as_it_was_trained_to(base):
    """The weights came out of their four bits whole: a broken scale or head would write noise."""
    model, codec = load_model(base), load_codec(base)
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([codec.tokenizer.encode(text, add_special_tokens=False)])
    written = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in codec.tokenizer.decode(written)


def test_it_learns_from_demonstrations_and_from_its_own_episodes(ground, params, base):
    codec = load_codec(base)
    rows = encoded(codec, ground.demonstrations(16, params=params))
    model = load_trainable(base, params.model, seed=1)
    losses, _ = ground.sft(model, codec, rows[:4], params)  # the same four rows in each step
    assert losses[-1] < losses[0] - 0.1, losses
    save_trained(model, codec.tokenizer, ground.folder / "sft")

    before = load_model(ground.folder / "sft").state_dict()
    model = load_trainable(ground.folder / "sft", params.model, seed=1)
    [step], _ = ground.online(model, codec, params)
    assert step["lost"] == 0
    assert step["logprob_gap_max"] < 1e-3, "what the engine drew by is what the trainer computes"
    assert step["generated_tokens"] > 0
    save_trained(model, codec.tokenizer, ground.folder / "policy")
    after = load_model(ground.folder / "policy").state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    targets = set(params.model.adapter.target_modules)
    assert all(name.split(".")[-2] in targets for name in moved), "embeddings and norms are not adapted"
    # by the KL term an update is made on groups of equal rewards, too, and its first gradient is 0
    assert bool(moved) == (step["grad_norm"] > 0), "without a signal nothing moves"
