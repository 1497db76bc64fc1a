"""How fast episodes are generated: the torch engine against `transformers.generate`, same weights,
prompts, sampling, message lengths and threads.

The peer plays in its best case: every message has one length, so no row of its batch waits for
another. It reads the history again in every turn, as TRL's loops do. Messages are cut at a fixed
length because a random model does not stop by itself.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import torch

from posttrain.config.params import load_params
from posttrain.models.params import ScratchModel
from posttrain.models.scratch import scratch_model
from posttrain.rollout.engines.protocol import GenerateRequest
from posttrain.rollout.engines.torch_engine import TorchEngine

NUM_TASKS, GROUP_SIZE, NUM_TURNS = 16, 8, 3
PROMPT_TOKENS, RESULT_TOKENS, MESSAGE_TOKENS = 90, 35, 13
CONTEXT_TOKENS = PROMPT_TOKENS + NUM_TURNS * (RESULT_TOKENS + MESSAGE_TOKENS)
VOCAB_SIZE = 900
NUM_ROUNDS = 5


def main() -> None:
    torch.set_num_threads(1)  # threads that wait for each other on busy cores would count as CPU time
    torch.manual_seed(0)
    model = _default_model()
    prompts = torch.randint(VOCAB_SIZE, (NUM_TASKS, PROMPT_TOKENS)).repeat_interleave(GROUP_SIZE, 0)
    results = torch.randint(VOCAB_SIZE, (NUM_TURNS, len(prompts), RESULT_TOKENS))
    engine = TorchEngine(model, num_slots=len(prompts), max_context_tokens=CONTEXT_TOKENS)
    sides: dict[str, Callable[[int], None]] = {
        "torch engine": lambda round_: asyncio.run(
            _play_with_engine(engine, prompts.tolist(), results.tolist(), round_)
        ),
        "transformers.generate": lambda _: _play_with_generate(model, prompts, results),
    }
    seconds = {name: _fastest_cpu_s(play) for name, play in sides.items()}
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(
        f"rollout: {size:.2f}M parameters, float32, {torch.get_num_threads()} threads, temperature 1, "
        f"fastest of {NUM_ROUNDS} rounds;"
    )
    print(
        f"  {NUM_TASKS} x {GROUP_SIZE} episodes, {NUM_TURNS} turns; tokens: prompt {PROMPT_TOKENS}, "
        f"results {RESULT_TOKENS}, message {MESSAGE_TOKENS}"
    )
    for name, cpu_s in seconds.items():
        num_written = len(prompts) * NUM_TURNS * MESSAGE_TOKENS
        print(
            f"  {name:22} {len(prompts) / cpu_s:7.0f} episodes and {num_written / cpu_s:7.0f} written tokens per "
            "CPU-second"
        )
    print(f"  ratio {seconds['transformers.generate'] / seconds['torch engine']:.2f}")


def _default_model() -> Any:
    """The default run's, before any training."""
    params = load_params().model
    assert isinstance(params, ScratchModel)
    return scratch_model(params, tokenizer=_Vocabulary(), max_context_tokens=CONTEXT_TOKENS, seed=0).eval()


class _Vocabulary:
    """What a model from scratch asks of its tokenizer; nothing ends a message before its length."""

    eos_token_id, pad_token_id = None, 0

    def __len__(self) -> int:
        return VOCAB_SIZE


def _fastest_cpu_s(play: Callable[[int], None]) -> float:
    """CPU-seconds, all threads together, of the fastest round after one that warms up."""
    play(-1)
    measured = []
    for round_ in range(NUM_ROUNDS):
        start = time.process_time()
        play(round_)
        measured.append(time.process_time() - start)
    return min(measured)


async def _play_with_engine(
    engine: TorchEngine, prompts: list[list[int]], results: list[list[list[int]]], round_: int
) -> None:
    async def play_one(index: int) -> None:
        token_ids = prompts[index]
        for turn in range(NUM_TURNS):
            request = GenerateRequest(f"{round_}/{index}", token_ids, MESSAGE_TOKENS, 1.0, index, frozenset())
            generation = await engine.generate(request)
            token_ids = [*token_ids, *generation.token_ids, *results[turn][index]]
        engine.release(f"{round_}/{index}")

    await asyncio.gather(*[play_one(index) for index in range(len(prompts))])


def _play_with_generate(model: Any, prompts: torch.Tensor, results: torch.Tensor) -> None:
    token_ids = prompts
    for turn in range(NUM_TURNS):
        token_ids = model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=MESSAGE_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
        )
        token_ids = torch.cat([token_ids, results[turn]], dim=1)


if __name__ == "__main__":
    main()
