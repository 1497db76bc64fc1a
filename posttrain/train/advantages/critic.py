"""Learns what an episode will earn, before each of the agent's tokens: a linear head on the last
hidden layer, from nothing, so that the first values are 0.

`apart`: on a copy of the policy as it is when training begins, of which as much is trained as of
the policy: all of it, or with adapters the copy's own adapters. `shared`: on the policy itself,
which the critic does not move; the head alone is trained. Every process has the whole critic, also
where the policy is sharded, and the sum of all their gradients keeps them one.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from posttrain.evals.groups import are_equal
from posttrain.models import distributed, sharding
from posttrain.models.adapters import behind_adapters
from posttrain.models.optimizers import build_optimizer
from posttrain.models.token_logprobs import scatter_scores
from posttrain.train.advantages.groups import FloatArray
from posttrain.train.advantages.params import CriticParams
from posttrain.train.online.batch import Rows
from posttrain.train.online.updates import MAX_GRAD_NORM, without_dropout

WEIGHTS, OPTIMIZER = "critic.safetensors", "critic.pt"


class Critic:
    """Made before accelerate has the policy, for it to be copied whole. `policy`: what accelerate
    will be given, under FSDP the twin that it cuts into shards."""

    def __init__(self, policy: Any, params: CriticParams, *, device: torch.device) -> None:
        self._policy, self._params, self._device = policy, params, device
        head = nn.Linear(policy.config.hidden_size, 1)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self._learnt = nn.ModuleDict({"head": head})
        if params.trunk == "apart":
            self._learnt["trunk"] = copy.deepcopy(behind_adapters(policy).base_model)
            without_dropout(self._learnt["trunk"])
        self._learnt.to(device)
        self._optimizer = build_optimizer(self._learnt, "adamw", params.lr)
        self._trained = [weight for group in self._optimizer.param_groups for weight in group["params"]]

    def values(self, parts: Sequence[Rows]) -> list[Tensor]:
        """What an episode is expected to earn before each of the agent's tokens, shape (N, T-1) for
        each part, 0 where a token is not the agent's. All processes must call it, with as many
        parts."""
        found = []
        with torch.no_grad():
            for part in parts:
                rows = part.to(self._device)
                picked = self._head(self._hidden(rows)[rows.is_scored_N_T])
                found.append(scatter_scores(picked, rows.is_scored_N_T))
        return found

    def learn(self, parts: Sequence[Rows], returns: Sequence[Tensor]) -> float:
        """Mean squared error over the returns of all processes as it was before; then
        `updates_per_step` steps of AdamW down its gradient. `returns` (N, T-1) of each part are NaN
        where there is none; without any nothing is learnt, and the error is 0. All processes must
        call it, with as many parts."""
        rows = [part.to(self._device) for part in parts]
        wanted = [returns_N_T.to(self._device) for returns_N_T in returns]
        is_wanted = [~returns_N_T.isnan() for returns_N_T in wanted]
        num_returns = sum(distributed.gather(sum(int(is_one.sum()) for is_one in is_wanted)))
        hidden = [self._hidden(part) for part in rows] if self._params.trunk == "shared" else None
        errors: list[float] = []
        for _ in range(self._params.updates_per_step if num_returns else 0):
            total = 0.0
            for place, part in enumerate(rows):
                if not is_wanted[place].any():
                    continue
                hidden_N_T = self._hidden(part) if hidden is None else hidden[place]
                gaps = self._head(hidden_N_T[is_wanted[place]]) - wanted[place][is_wanted[place]].float()
                loss = gaps.square().sum() / num_returns
                loss.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
            errors.append(sum(distributed.gather(total)))
            self._step()
        return errors[0] if errors else 0.0

    def save(self, folder: Path) -> None:
        """Its files of a checkpoint; by the first process, before the folder is sealed."""
        save_model(self._learnt, str(folder / WEIGHTS))
        torch.save(sharding.whole_optimizer_state(self._optimizer), folder / OPTIMIZER)

    def load(self, folder: Path) -> None:
        """The reverse, by every process."""
        load_model(self._learnt, str(folder / WEIGHTS))
        self._optimizer.load_state_dict(torch.load(folder / OPTIMIZER, weights_only=True))

    def _hidden(self, rows: Rows) -> Tensor:
        """The last layer's state before each token, shape (N, T-1, width)."""
        if self._params.trunk == "shared":
            return _last_hidden(self._policy, rows.input_ids_N_T)[:, :-1]
        hidden: Tensor = self._learnt["trunk"](input_ids=rows.input_ids_N_T, use_cache=False).last_hidden_state
        return hidden[:, :-1]

    def _head(self, hidden: Tensor) -> Tensor:
        values: Tensor = self._learnt["head"](hidden.float())
        return values.squeeze(-1)

    def _step(self) -> None:
        for weight in self._trained:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        distributed.add_up([weight.grad for weight in self._trained if weight.grad is not None])
        nn.utils.clip_grad_norm_(self._trained, MAX_GRAD_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()


def targets_of(returns: Sequence[FloatArray], part: Rows) -> Tensor:
    """The returns of a part's rows, one number for each of the agent's tokens, as `learn` takes
    them: shape (N, T-1), NaN where a token is not the agent's."""
    is_scored_N_T = part.is_scored_N_T
    numbers = torch.from_numpy(np.concatenate([*returns, np.zeros(0)])).float()
    return torch.full(is_scored_N_T.shape, torch.nan).masked_scatter(is_scored_N_T, numbers)


def explained_variance(returns: FloatArray, values: FloatArray) -> float:
    """1 - Var(returns - values) / Var(returns), of the places with a return: 1 where the values
    are the returns but for a constant, 0 where they say nothing, below 0 where they mislead. 0
    where the returns do not vary, or there are none. Returns 0, 1 and NaN, values 0, 1/2 and 9: 1 -
    (1/16)/(1/4) = 3/4."""
    is_wanted = ~np.isnan(returns)
    wanted = returns[is_wanted]
    if not len(wanted) or are_equal(wanted):
        return 0.0
    return float(1 - np.var(wanted - values[is_wanted]) / np.var(wanted))


@torch.no_grad()
def _last_hidden(policy: Any, input_ids_N_T: Tensor) -> Tensor:
    """Heard on the way through the whole model's `forward`, where shards are gathered."""
    heard: list[Tensor] = []
    hook = behind_adapters(policy).base_model.register_forward_hook(
        lambda _, __, output: heard.append(output.last_hidden_state)
    )
    try:
        policy(input_ids=input_ids_N_T, use_cache=False, logits_to_keep=1)
    finally:
        hook.remove()
    return heard[0]
