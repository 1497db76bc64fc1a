"""A real vLLM server with LoRA (`LORA_RANK` of serve.sh): the adapter in training writes, and the
model beneath it is served as it was."""

import asyncio
import json
import urllib.request

import aiohttp
import pytest
import torch

from posttrain.models.lora import add_lora
from posttrain.models.params import LoraAdapter
from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.rollout.engines.vllm_server import BASE, VllmServer
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.runtime.exits import ConfigurationError
from tests.real.experiment import worst_gap

pytest_plugins = ["tests.real.vllm_fixtures"]
pytestmark = [pytest.mark.needs_vllm, pytest.mark.usefixtures("_play_by_vllm")]
RANK = 8
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = LoraAdapter(type="lora", r=RANK, alpha=2 * RANK, dropout=0.0, target_modules=LINEAR)
NUM_GRPO_STEPS = 8
NOISE = 0.1  # on an adapter's weights: log-probs move by 11 to 18 at most in 15 draws; at 0.03 by 0.3 to 5
LR = 0.03  # the default run's 0.002, which is for full weights, hardly moves an adapter in so few steps


@pytest.fixture(scope="module")
def servers(serve):
    return serve(8613, LORA_RANK=str(RANK))


def test_after_every_update_tokens_are_drawn_by_the_new_adapter(servers, experiment):
    tasks, base = experiment.tasks("dev")[:32], experiment.model()
    model = add_lora(experiment.model(), LORA, seed=1).eval()
    sampler = experiment.sampler(model)
    torch.manual_seed(0)
    adapters = []
    fresh = {name: weight.detach().clone() for name, weight in model.named_parameters() if "lora_" in name}
    for version in range(5):
        sampler.refresh()
        played = sampler.sample(tasks, episode_seeds(Stream.MEASUREMENT, version, count=len(tasks)))
        assert {turn.policy_version for one in played for turn in one.turns} == {version}
        gap, moved = worst_gap(model, played), worst_gap(base, played)
        print(
            f"\nversion {version}: log-probs differ by {gap:.1e} at most, "
            f"by {moved:.1e} from the model without the adapter"
        )
        assert gap < 1e-3
        assert moved > 0.3 or version == 0, "the one test tells nothing where the other would pass as well"
        adapters += adapters_of(servers[0])
        with torch.no_grad():
            for name, weight in fresh.items():
                model.get_parameter(name).copy_(weight + NOISE * torch.randn_like(weight))
    assert len(set(adapters)) == len(adapters) == 5, "each version has a name of its own, and the server one at a time"
    assert worst_gap_of_the_model_beneath(servers[0], base, [one.token_ids for one in played]) < 1e-3


def test_grpo_trains_the_adapter_alone(servers, experiment, tmp_path):
    base, model = experiment.model(), add_lora(experiment.model(), LORA, seed=1)
    steps = experiment.train(model, tmp_path / "run", num_steps=NUM_GRPO_STEPS, lr=LR)
    kl, gap = steps[-1]["kl"], max(step["logprob_gap_max"] for step in steps)
    print(f"\nreward of the steps: {', '.join(format(step['reward_mean'], '.2f') for step in steps)}")
    print(f"  KL to the SFT model {kl:.4f}; log-probs differ by {gap:.1e} at most")
    assert gap < 1e-3
    assert all(step["lost"] == 0 for step in steps)
    assert kl > 1e-3, "it moved"
    contexts = [list(range(20, 60)), list(range(100, 190))]
    with model.disable_adapter():
        assert model(torch.tensor(contexts[:1])).logits.equal(base(torch.tensor(contexts[:1])).logits)
    assert worst_gap_of_the_model_beneath(servers[0], base, contexts) < 1e-3


def test_an_adapter_that_the_server_does_not_take_ends_the_run_at_once(experiment):
    model = add_lora(experiment.model(), LORA.model_copy(update={"r": 2 * RANK}), seed=1)
    with pytest.raises(
        ConfigurationError, match=r"LoRA rank 16 is greater than max_lora_rank 8.*set to the adapter's r or more"
    ):
        experiment.sampler(model).refresh()


def adapters_of(server):
    with urllib.request.urlopen(f"{server.url}/v1/models") as answer:
        return [model["id"] for model in json.load(answer)["data"] if model["id"] != BASE]


def worst_gap_of_the_model_beneath(server, base, contexts):
    """Largest distance of the server's log-probabilities without an adapter from the base's."""

    async def write_all():
        async with aiohttp.ClientSession() as session:
            client = VllmServer(server.url, session, timeout_s=60)
            requests = [GenerateRequest("beneath", ids, 8, 1.0, seed, frozenset()) for seed, ids in enumerate(contexts)]
            return await asyncio.gather(*[client.write(request, model=BASE) for request in requests])

    gaps = []
    for context, (token_ids, logprobs, *_) in zip(contexts, asyncio.run(write_all()), strict=True):
        ids = torch.tensor([[*context, *token_ids]])
        with torch.no_grad():
            expected = torch.log_softmax(base(ids).logits[0, len(context) - 1 : -1], -1).gather(
                1, ids[0, len(context) :, None]
            )[:, 0]
        gaps.append(float((expected - torch.tensor(logprobs)).abs().max()))
    return max(gaps)
