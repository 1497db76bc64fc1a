"""The number of threads is a machine fact: chosen from the load, and without a trace in the
bits."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from posttrain.config.params import Params, load_params
from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import ScratchModel
from posttrain.models.scratch import scratch_model
from posttrain.rollout.engines.protocol import GenerateRequest, Generation
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.runtime.exits import ConfigurationError
from posttrain.runtime.threads import choose_num_threads, idle_cores


@pytest.mark.parametrize(
    ("busy_percent", "num_cores", "num_allowed", "expected"),
    [(0, 2, 2, 2), (60, 2, 2, 1), (100, 2, 2, 1), (20, 2, 1, 1), (50, 64, 64, 2), (99, 64, 64, 1)],
)
def test_threads_are_the_cores_that_nobody_uses(busy_percent: float, num_cores: int, num_allowed: int, expected: int):
    assert idle_cores(busy_percent, num_cores=num_cores, num_allowed=num_allowed) == expected


def test_the_environment_decides_where_it_says_a_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POSTTRAIN_THREADS", "3")
    assert choose_num_threads() == 3
    monkeypatch.setenv("POSTTRAIN_THREADS", "two")
    with pytest.raises(ConfigurationError, match="POSTTRAIN_THREADS is 'two', not a positive number"):
        choose_num_threads()


@pytest.mark.parametrize(("num_rows", "num_tokens"), [(1, 90), (4, 180), (16, 333)])
def test_one_thread_and_two_make_the_same_bits(repository: Path, num_rows: int, num_tokens: int):
    trained = [
        _trained(load_params(repository / "params.yaml"), num_rows, num_tokens, num_threads=num_threads)
        for num_threads in (1, 2)
    ]
    assert all(torch.equal(one, two) for one, two in zip(*trained, strict=True))


def test_episodes_are_the_same_bits_by_one_thread_and_two(repository: Path):
    """However many are left: of few rows a product is split between threads."""
    written = [_written(load_params(repository / "params.yaml"), num_threads=num_threads) for num_threads in (1, 2)]
    assert written[0] == written[1]


class _Tokenizer:
    eos_token_id, pad_token_id = 0, 1

    def __len__(self) -> int:
        return 900


def _trained(params: Params, num_rows: int, num_tokens: int, *, num_threads: int) -> list[torch.Tensor]:
    """The parameters of the default model after one step."""
    assert isinstance(params.model, ScratchModel)
    model = scratch_model(
        params.model, tokenizer=_Tokenizer(), max_context_tokens=params.agent.max_context_tokens, seed=1
    )
    optimizer = build_optimizer(model, params.train_sft.optimizer, params.train_sft.lr)
    ids = torch.randint(len(_Tokenizer()), (num_rows, num_tokens), generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    finally:
        torch.set_num_threads(before)
    return list(model.parameters())


def _written(params: Params, *, num_threads: int) -> list[tuple[Sequence[int], Sequence[float]]]:
    """Tokens and log-probabilities of thirteen messages of 1 to 13 tokens, then again behind three
    more tokens each."""
    assert isinstance(params.model, ScratchModel)
    model = scratch_model(
        params.model, tokenizer=_Tokenizer(), max_context_tokens=params.agent.max_context_tokens, seed=1
    ).eval()
    prompts = torch.randint(len(_Tokenizer()), (13, 90), generator=torch.Generator().manual_seed(1)).tolist()

    async def write() -> list[Generation]:
        engine = TorchEngine(model, num_slots=16, max_context_tokens=200)
        context_ids, written = prompts, list[Generation]()
        for _ in range(2):
            requests = [
                GenerateRequest(str(place), token_ids, 1 + place, temperature=1.0, seed=place, stop_ids=frozenset())
                for place, token_ids in enumerate(context_ids)
            ]
            generations = await asyncio.gather(*[engine.generate(request) for request in requests])
            context_ids = [
                [*before, *generation.token_ids, 5, 6, 7]
                for before, generation in zip(context_ids, generations, strict=True)
            ]
            written += generations
        return written

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        return [(generation.token_ids, generation.logprobs) for generation in asyncio.run(write())]
    finally:
        torch.set_num_threads(before)
