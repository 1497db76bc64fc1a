"""Critic: predicts what an episode will earn before each of the agent's tokens, by a linear head on
the last hidden layer that begins at zero.

`apart`: on a copy of the first policy, trained as the policy is, whole or by the copy's own
adapters. `shared`: on the policy itself, which the critic does not move. Every process has the
whole critic, and the sum of all their gradients keeps them one; under FSDP it is sharded, too.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from posttrain.evals.groups import are_equal
from posttrain.models import distributed, sharding
from posttrain.models.adapters import behind_adapters
from posttrain.models.optimizers import build_optimizer
from posttrain.models.params import MAX_GRAD_NORM
from posttrain.models.token_logprobs import scatter_scores
from posttrain.train.advantages.gae import CriticParams
from posttrain.train.advantages.groups import FloatArray
from posttrain.train.online.updates import Batch, without_dropout
from posttrain.train.sharded_state import is_sharded_state, load_optimizer_file, load_shards, load_weights, save_shards

WEIGHTS, OPTIMIZER, SHARDS = "critic.safetensors", "critic.pt", "critic"


class Critic:
    """To be made before accelerate prepares the policy, which patches what would be copied."""

    def __init__(self, policy: Any, params: CriticParams, *, device: torch.device) -> None:
        self._policy, self._params, self._device = policy, params, device
        head = nn.Linear(policy.config.hidden_size, 1)
        # a head drawn at random would begin with an opinion
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self._learnt = nn.ModuleDict({"head": sharding.sharded_layer(head.to(device))})
        if params.trunk == "apart":
            self._learnt["trunk"] = _trunk_of(policy, device)
            without_dropout(self._learnt["trunk"])
        self._optimizer = build_optimizer(self._learnt, "adamw", params.lr)
        self._trained = [weight for group in self._optimizer.param_groups for weight in group["params"]]

    def values(self, micro_batches: Sequence[Batch]) -> list[Tensor]:
        """Expected reward before each of the agent's tokens, (N, T-1) per micro-batch, 0
        elsewhere. All processes must call it, with as many micro-batches."""
        found = []
        with torch.no_grad():
            for one in micro_batches:
                batch = one.to(self._device)
                picked = self._head(self._hidden(batch)[batch.is_scored_N_T])
                found.append(scatter_scores(picked, batch.is_scored_N_T))
        return found

    def learn(self, micro_batches: Sequence[Batch], returns: Sequence[Tensor]) -> float:
        """Make `updates_per_step` steps of AdamW on the mean squared error over the returns of
        all processes; returns the error before them. `returns` (N, T-1) are NaN where there is
        none. All processes must call it, with as many micro-batches."""
        batches = [one.to(self._device) for one in micro_batches]
        wanted = [returns_N_T.to(self._device) for returns_N_T in returns]
        is_wanted = [~returns_N_T.isnan() for returns_N_T in wanted]
        num_returns = sum(distributed.gather(sum(int(is_one.sum()) for is_one in is_wanted)))
        # a shared trunk stands still meanwhile: one pass does for all updates
        hidden = [self._hidden(batch) for batch in batches] if self._params.trunk == "shared" else None
        errors: list[float] = []
        for _ in range(self._params.updates_per_step if num_returns else 0):
            total = 0.0
            for place, batch in enumerate(batches):
                if not is_wanted[place].any() and not distributed.is_sharded():  # shards are exchanged in each pass
                    continue
                hidden_N_T = self._hidden(batch) if hidden is None else hidden[place]
                gaps = self._head(hidden_N_T[is_wanted[place]]) - wanted[place][is_wanted[place]].float()
                # over the returns of all processes, so that parts of any size make one step
                loss = gaps.square().sum() / num_returns
                # FSDP takes the mean over processes
                scaled = loss * distributed.count() if distributed.is_sharded() else loss
                scaled.backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach())
            errors.append(sum(distributed.gather(total)))
            self._step()
        return errors[0] if errors else 0.0

    def save(self, folder: Path) -> None:
        if distributed.is_sharded():
            save_shards(folder / SHARDS, self._learnt, self._optimizer)
        elif distributed.is_first():
            save_model(self._learnt, str(folder / WEIGHTS))
            torch.save(self._optimizer.state_dict(), folder / OPTIMIZER)

    def load(self, folder: Path) -> None:
        if is_sharded_state(folder / SHARDS):
            load_shards(folder / SHARDS, self._learnt, self._optimizer)
        else:
            load_weights(self._learnt, folder / WEIGHTS)
            load_optimizer_file(self._optimizer, folder / OPTIMIZER)

    def _hidden(self, batch: Batch) -> Tensor:
        """The last layer's state before each token, (N, T-1, width)."""
        if self._params.trunk == "shared":
            return _last_hidden(self._policy, batch.input_ids_N_T)[:, :-1]
        hidden: Tensor = self._learnt["trunk"](input_ids=batch.input_ids_N_T, use_cache=False).last_hidden_state
        # column t is the state before token t + 1, which is what its value may know
        return hidden[:, :-1]

    def _head(self, hidden: Tensor) -> Tensor:
        values: Tensor = self._learnt["head"](hidden.float())
        return values.squeeze(-1)

    def _step(self) -> None:
        if not distributed.is_sharded():
            for weight in self._trained:
                # a process without a return has no gradient, and all must add up the same tensors
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            distributed.add_up([weight.grad for weight in self._trained if weight.grad is not None])
        nn.utils.clip_grad_norm_(self._trained, MAX_GRAD_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad()


def _trunk_of(policy: Any, device: torch.device) -> Any:
    if distributed.is_sharded():
        return sharding.sharded_copy(policy, lambda structure: behind_adapters(structure).base_model)
    return copy.deepcopy(behind_adapters(policy).base_model).to(device)


def targets_of(returns: Sequence[FloatArray], batch: Batch) -> Tensor:
    """Returns of a batch's rows, one per agent token, as (N, T-1), NaN elsewhere."""
    is_scored_N_T = batch.is_scored_N_T
    numbers = torch.from_numpy(np.concatenate([*returns, np.zeros(0)])).float()
    return torch.full(is_scored_N_T.shape, torch.nan).masked_scatter(is_scored_N_T, numbers)


def explained_variance(returns: FloatArray, values: FloatArray) -> float:
    """1 - Var(returns - values) / Var(returns): 1 where values are the returns but for a
    constant, below 0 where they mislead, 0 where returns do not vary. Returns 0, 1 and NaN,
    values 0, 1/2 and 9: 1 - (1/16)/(1/4) = 3/4."""
    is_wanted = ~np.isnan(returns)
    wanted = returns[is_wanted]
    if not len(wanted) or are_equal(wanted):
        return 0.0
    return float(1 - np.var(wanted - values[is_wanted]) / np.var(wanted))


@torch.no_grad()
def _last_hidden(policy: Any, input_ids_N_T: Tensor) -> Tensor:
    """The last layer's output, caught by a hook on the whole model's `forward`, where FSDP
    gathers the shards."""
    outputs: list[Tensor] = []
    hook = behind_adapters(policy).base_model.register_forward_hook(
        lambda _, __, output: outputs.append(output.last_hidden_state)
    )
    try:
        policy(input_ids=input_ids_N_T, use_cache=False, logits_to_keep=1)
    finally:
        hook.remove()
    return outputs[0]
