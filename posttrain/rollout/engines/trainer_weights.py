"""The trainer's weights as servers get them and are checked against: written to a folder or sent,
and as log-probabilities of tokens. Where weights are sharded, the first process alone speaks with
servers, and the others take part until it is done.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.models import distributed
from posttrain.models.token_logprobs import IGNORED, agent_logprobs, pad_right
from posttrain.rollout.engines.protocol import EngineFailed, GenerateRequest, Generation
from posttrain.rollout.engines.weight_files import weights_in_turn, write_weights
from posttrain.rollout.engines.weight_stream import WeightSender, send

_CHECK_ROWS = 20  # fixed prompts scored in one forward pass
_SEND = "send"


class TrainerWeights:
    """The weights of `model` as they are; `prompts` are fixed."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        self._model, self._prompts = model, prompts

    def write(self, folder: Path) -> Path:
        """Write them into a new folder; returns its absolute path."""
        self._ask(folder)
        return write_weights(self._model, folder)

    def send_all(self, servers: Sequence[WeightSender]) -> None:
        """Send them to servers that have come, each weight to all before the next."""
        self._ask(_SEND)
        send(weights_in_turn(self._model), servers)

    def score(self, written: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of tokens behind each prompt."""
        self._ask(written)
        return self._score(written)

    def end(self) -> None:
        """Let the other processes go on."""
        self._ask(None)

    def follow(self) -> None:
        """In the other processes: take part in what the first does, up to its `end`."""
        nothing: Any = None
        while (asked := distributed.from_first(nothing)) is not None:
            if isinstance(asked, Path):
                write_weights(self._model, asked)
            elif asked == _SEND:
                send(weights_in_turn(self._model), ())
            else:
                self._score(asked)

    def _ask(self, what: Any) -> None:
        if distributed.is_sharded():
            distributed.from_first(what)

    @torch.no_grad()
    def _score(self, written: Sequence[Sequence[int]]) -> list[list[float]]:
        # Dropout must be off, and the trainer's mode restored.
        was_training = self._model.training
        self._model.eval()
        scored: list[list[float]] = []
        for first in range(0, len(written), _CHECK_ROWS):
            places = slice(first, first + _CHECK_ROWS)
            pairs = list(zip(self._prompts[places], written[places], strict=True))
            # Padding behind a row changes nothing before it: attention is causal.
            ids_N_T = pad_right([[*prompt, *ids] for prompt, ids in pairs], 0)
            labels_N_T = pad_right([[*[IGNORED] * len(prompt), *ids] for prompt, ids in pairs], IGNORED)
            logprobs_N_T = agent_logprobs(self._model, *(one.to(self._model.device) for one in (ids_N_T, labels_N_T)))
            is_scored_N_T = labels_N_T[:, 1:] != IGNORED
            scored += [own_T[is_T].tolist() for own_T, is_T in zip(logprobs_N_T.cpu(), is_scored_N_T, strict=True)]
        self._model.train(was_training)
        return scored


class ShardHolder:
    """The engine of a process that has a shard and speaks with no server."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        self.policy_version = -1
        self._weights = TrainerWeights(model, prompts)
        self.refresh_weights()

    async def generate(self, request: GenerateRequest) -> Generation:
        raise EngineFailed(f"episode {request.episode_id} belongs to the first process, which asks the servers")

    def release(self, episode_id: str) -> None:
        pass

    def refresh_weights(self) -> None:
        """Take part in what the first process's engine does with the weights."""
        self.policy_version += 1
        self._weights.follow()

    def sleep(self) -> None:
        pass
