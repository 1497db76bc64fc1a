"""Checks that the torch engine says what the model says: 1,000 greedy multi-turn episodes against a
full forward of transformers, and 10,000 sampled ones against what the engine was asked to read.

A greedy token counts as equal where it is the forward's most probable one, as a tie where the
forward's best two are within 1e-4. A re-tokenisation mismatch is a turn that reads other ids than
those which were written before; beside it stands how many messages would have come out as other ids
had their text gone through the tokenizer, which a loop that works on text trains on.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posttrain.config.params import Params, load_params
from posttrain.data.schemas import read_tasks
from posttrain.models.codec import ChatCodec
from posttrain.models.loading import load_codec, load_model
from posttrain.models.token_logprobs import pad_right
from posttrain.rollout.engines.protocol import GenerateRequest, Generation
from posttrain.rollout.engines.torch_engine import TorchEngine
from posttrain.rollout.episode_sampler import Stream, episode_seeds
from posttrain.rollout.episodes import play_episodes
from posttrain.rollout.policy import TokenPolicy
from posttrain.types import Trajectory
from posttrain.worlds.catalog import make_domain

MODEL = Path("data/models/sft")
TASKS = Path("data/raw/tasks.parquet")
NUM_GREEDY, NUM_SAMPLED, NUM_SLOTS = 1_000, 10_000, 64
TIE_LOGPROB = 1e-4


def main() -> None:
    params = load_params()
    model, codec = load_model(MODEL, dtype=params.model.dtype).eval(), load_codec(MODEL)
    greedy = _play(model, codec, params, count=NUM_GREEDY, temperature=0.0)[0]
    num_tokens, num_ties, num_other, errors = _against_forward(model, greedy)
    turns = np.mean([len(one.turns) for one in greedy])
    print(f"greedy: {len(greedy)} episodes of {turns:.1f} turns, {num_tokens} tokens; against a full forward")
    print(
        f"  {num_other} other tokens, {num_ties} ties; log-probs differ by {errors.max():.1e}, "
        f"{errors.mean():.1e} on average"
    )

    sampled, contexts = _play(model, codec, params, count=NUM_SAMPLED, temperature=1.0)
    mismatches = sum(
        list(context) != list(one.token_ids[: len(context)])
        for one, asked in zip(sampled, contexts, strict=True)
        for context in asked
    )
    messages = [ids for one in sampled for ids in _written(one)]
    rewritten = sum(codec.encode_assistant(codec.parse(ids)) != ids for ids in messages if ids[-1] in codec.stop_ids)
    print(
        f"sampled: {len(sampled)} episodes, {len(messages)} messages through {NUM_SLOTS} slots: "
        f"{mismatches} re-tokenisation mismatches;"
    )
    print(
        f"  {rewritten} messages ({rewritten / len(messages):.2%}) would have been other ids, "
        "had their text been tokenised again"
    )


class _Recording:
    """The torch engine, and what each episode asked it to read."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self.contexts: dict[str, list[Sequence[int]]] = {}

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    async def generate(self, request: GenerateRequest) -> Generation:
        self.contexts.setdefault(request.episode_id, []).append(list(request.token_ids))
        return await self._engine.generate(request)

    def release(self, episode_id: str) -> None:
        self._engine.release(episode_id)

    def refresh_weights(self) -> None:
        self._engine.refresh_weights()

    def sleep(self) -> None:
        self._engine.sleep()


def _play(
    model: Any, codec: ChatCodec, params: Params, *, count: int, temperature: float
) -> tuple[list[Trajectory], list[list[Sequence[int]]]]:
    tasks = read_tasks(TASKS, "test", "rl")
    plays = [tasks[index % len(tasks)] for index in range(count)]
    engine = _Recording(TorchEngine(model, num_slots=NUM_SLOTS, max_context_tokens=params.agent.max_context_tokens))
    played = play_episodes(
        TokenPolicy(engine, codec, temperature=temperature),
        plays,
        domain=make_domain(params.world),
        limits=params.agent,
        seeds=episode_seeds(Stream.MEASUREMENT, 1, count=count),
    )
    return played, [engine.contexts[f"{task.task_id}/{index}"] for index, task in enumerate(plays)]


@torch.inference_mode()
def _against_forward(model: Any, played: Sequence[Trajectory]) -> tuple[int, int, int, np.ndarray]:
    """Tokens the agent wrote, those where the forward's best two were a tie, those where it prefers
    another one, |difference of log-probs| of all."""
    num_ties = num_other = 0
    errors: list[np.ndarray] = []
    by_length = sorted(played, key=lambda one: len(one.token_ids))
    for batch in (by_length[start : start + 16] for start in range(0, len(by_length), 16)):
        input_ids = pad_right([one.token_ids for one in batch], 0)
        logprobs_N_T_V = torch.log_softmax(model(input_ids=input_ids).logits.float(), -1)[:, :-1]
        is_written = pad_right([one.mask for one in batch], 0)[:, 1:].bool()
        token = input_ids[:, 1:][is_written]
        logprobs = logprobs_N_T_V[is_written]
        ours = torch.tensor(
            [value for one in batch for value, mine in zip(one.logprobs, one.mask, strict=True) if mine]
        )
        best = logprobs.topk(2).values
        is_other = logprobs.argmax(-1) != token
        is_tie = best[:, 0] - best[:, 1] < TIE_LOGPROB
        num_ties += int((is_other & is_tie).sum())
        num_other += int((is_other & ~is_tie).sum())
        errors.append((logprobs.gather(1, token[:, None])[:, 0] - ours).abs().numpy())
    differences = np.concatenate(errors)
    return len(differences), num_ties, num_other, differences


def _written(trajectory: Trajectory) -> Iterator[list[int]]:
    """The ids of each message."""
    start = 0
    for turn in trajectory.turns:
        start += turn.num_read
        yield list(trajectory.token_ids[start : start + turn.num_written])
        start += turn.num_written


if __name__ == "__main__":
    main()
