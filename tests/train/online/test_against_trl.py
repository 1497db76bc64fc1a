"""The first step's loss and gradient are TRL's, on the same episodes, for each of its averages."""

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from tiny import play_words, tiny_model, tiny_tokenizer, word_task
from trl import GRPOConfig, GRPOTrainer

from posttrain.train.online.params import OnlineParams
from posttrain.train.online.updates import Sample, batch_loss, batch_of, score, token_weights

MAX_TOKENS = 7
AVERAGES = {"grpo": "episodes", "dr_grpo": "max_tokens", "dapo": "tokens", "bnpo": "tokens"}


@pytest.fixture(scope="module")
def played():
    """Two tasks, four episodes each; one of them is cut short, so that lengths differ."""
    model = tiny_model()
    episodes = [play_words(model, word_task(x, 9), seed) for x in (4, 5) for seed in range(4)]
    short = episodes[2].trajectory
    for name in ("token_ids", "mask", "logprobs"):
        object.__setattr__(short, name, getattr(short, name)[:5])
    return episodes, [1.2, -0.4, 0.3, -1.1, 0.5, 0.9, -0.25, 0.0]


def trls(loss_type, played, folder):
    episodes, advantages = played
    model = tiny_model()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(folder),
            loss_type=loss_type,
            per_device_train_batch_size=len(episodes),
            num_generations=4,
            max_completion_length=MAX_TOKENS - 4,
            beta=0.0,
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"]}),
        processing_class=tiny_tokenizer(),
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trajectories = [one.trajectory for one in episodes]
    width = max(len(one.token_ids) for one in trajectories) - 4
    padded = [[*one.token_ids[4:], *[0] * (width + 4 - len(one.token_ids))] for one in trajectories]
    exists = [[1] * (len(one.token_ids) - 4) + [0] * (width + 4 - len(one.token_ids)) for one in trajectories]
    written = [[*one.mask[4:], *[0] * (width + 4 - len(one.mask))] for one in trajectories]
    inputs = {
        "prompt_ids": torch.tensor([one.token_ids[:4] for one in trajectories]),
        "prompt_mask": torch.ones(len(episodes), 4, dtype=torch.long),
        "completion_ids": torch.tensor(padded),
        "completion_mask": torch.tensor(exists),
        "tool_mask": torch.tensor(written),
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": torch.tensor(sum(sum(one.mask) for one in trajectories)),
    }
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return float(loss.detach()), gradients_of(trainer.model)


def ours(average, played):
    episodes, advantages = played
    values = yaml.safe_load(OnlineParams.example) | {"type": "online", "average": average}
    params = OnlineParams.model_validate(values)
    model = tiny_model()
    samples = [
        Sample(one, np.full(sum(one.trajectory.mask), advantage))
        for one, advantage in zip(episodes, advantages, strict=True)
    ]
    batch = batch_of(samples, pad_id=0)
    weight_N = token_weights(
        batch.lengths_N,
        average=average,
        num_tokens=int(batch.lengths_N.sum()),
        num_episodes=len(episodes),
        max_tokens=MAX_TOKENS - 4,
    )
    now = score(model, batch, 1.0)
    loss = batch_loss(now, now.logprobs.detach(), batch, weight_N, params)
    loss.backward()
    return float(loss.detach()), gradients_of(model)


def gradients_of(model):
    return {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("loss_type", AVERAGES)
def test_the_first_steps_loss_and_gradient_are_trls(played, tmp_path, loss_type):
    their_loss, theirs = trls(loss_type, played, tmp_path)
    our_loss, found = ours(AVERAGES[loss_type], played)
    assert our_loss == pytest.approx(their_loss, rel=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5 * largest, msg=name)
