"""Learns from the rows of a step: their log-probabilities, their loss, and what the optimizer steps
came to."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from posttrain.algorithms import processes
from posttrain.algorithms.importance import importance_weights
from posttrain.models.parts import add_gradients
from posttrain.models.token_logprobs import agent_scores, placed
from posttrain.rl.joining.params import JoinsExpert
from posttrain.rl.objective.kl import kl_estimates
from posttrain.rl.objective.token_losses import held_side, shown_losses, token_losses, token_weights
from posttrain.rl.params import OnlineParams
from posttrain.rl.rows import Member, Rows

MAX_GRAD_NORM = 1.0


class Scored(NamedTuple):
    """Of each token of the agent's given what stands before it, shape (N, T-1), 0 elsewhere:
    `logprobs`, and the `entropies` of the distributions that they are of, in nats."""

    logprobs: Tensor
    entropies: Tensor | None


def teaching(members: Sequence[Member], params: OnlineParams) -> list[Member]:
    """Those that the step's loss is about: the ones with an advantage, or all where KL or entropy
    are part of it. As many idle ones go with them as give every process a row."""
    if is_of_all(params):
        return list(members)
    kept, idle = [one for one in members if not one.is_idle], [one for one in members if one.is_idle]
    return kept + idle[: max(processes.count() - len(kept), 0)]


def has_signal(members: Sequence[Member], params: OnlineParams) -> bool:
    """Whether there is anything to learn from these."""
    return bool(members) and (is_of_all(params) or not all(one.is_idle for one in members))


def is_of_all(params: OnlineParams) -> bool:
    """Whether the loss is of episodes without an advantage, too."""
    return params.kl.type != "none" or params.entropy_bonus > 0


def weights_of(
    parts: Sequence[Rows], members: Sequence[Member], params: OnlineParams, max_context_tokens: int
) -> list[Tensor]:
    """What a token of each row counts in the step's loss, a tensor (N,) for each part. `members`
    are all of the step, of every process."""
    return [
        token_weights(
            part.lengths_N,
            average=params.average,
            num_tokens=sum(len(one.advantages_T) for one in members),
            num_episodes=len(members),
            max_tokens=max_context_tokens,
        )
        for part in parts
    ]


def scored(model: Any, rows: Rows, temperature: float, *, with_entropies: bool = False) -> Scored:
    """By the weights as they are."""
    is_scored_N_T = rows.is_scored_N_T
    found = agent_scores(
        model,
        rows.input_ids_N_T,
        rows.labels_N_T[:, 1:],
        is_scored_N_T,
        temperature=temperature,
        with_entropies=with_entropies,
    )
    entropies = placed(found.entropies_P, is_scored_N_T) if found.entropies_P is not None else None
    return Scored(placed(found.logprobs_P, is_scored_N_T), entropies)


def entropies(model: Any, rows: Rows, temperature: float) -> Tensor:
    """Those of `scored` alone."""
    found = scored(model, rows, temperature, with_entropies=True).entropies
    assert found is not None
    return found


def part_loss(
    now: Scored,
    before_N_T: Tensor,
    rows: Rows,
    weight_N: Tensor,
    params: OnlineParams,
    *,
    reference_N_T: Tensor | None = None,
    kl_weight: float = 0.0,
) -> Tensor:
    """What these rows add to the step's loss. `now` is by the weights as they are; `before`, log-
    probs by those that the step's first update began from; `reference`, by the model that training
    began from."""
    trusted_N_T = importance_weights(before_N_T, rows.engine_logprobs_N_T, cap=params.importance_cap)
    losses_N_T = token_losses(
        now.logprobs - before_N_T,
        rows.advantages_N_T * trusted_N_T,
        params.objective,
        is_scored_N_T=rows.is_scored_N_T,
    )
    if isinstance(params.join, JoinsExpert):
        shown_N_T = shown_losses(now.logprobs, rows.advantages_N_T, gamma=params.join.gamma)
        losses_N_T = torch.where(rows.is_shown_N[:, None], shown_N_T, losses_N_T)
    if reference_N_T is not None and kl_weight:
        losses_N_T = losses_N_T + kl_weight * kl_estimates(now.logprobs, reference_N_T)
    if now.entropies is not None and params.entropy_bonus:
        losses_N_T = losses_N_T - params.entropy_bonus * now.entropies
    return (losses_N_T * rows.is_scored_N_T * weight_N[:, None]).sum()


class Updates:
    """What the optimizer steps of one step came to. `parts` were learnt from; `before`: their log-
    probs by the weights that the first update began from."""

    def __init__(self) -> None:
        self.parts: Sequence[Rows] = ()
        self.before: list[Tensor] = []
        self.grad_norms: list[float] = []
        self._num_tokens = self._num_low = self._num_high = 0.0

    def hear(self, log_ratio_N_T: Tensor, rows: Rows, params: OnlineParams) -> None:
        """Of a part that is learnt from."""
        is_scored_N_T = rows.is_scored_N_T
        side_N_T = held_side(log_ratio_N_T.detach(), rows.advantages_N_T, params.objective, is_scored_N_T=is_scored_N_T)
        side = side_N_T.expand_as(is_scored_N_T)[is_scored_N_T]
        self._num_tokens += side.numel()
        self._num_low += float((side < 0).sum())
        self._num_high += float((side > 0).sum())

    def metrics(self) -> dict[str, float]:
        """`grad_norm`: of the last update, before it is clipped. `updates`: how many were made.
        `clip_low`, `clip_high`: shares of this process's tokens whose ratio was held."""
        tokens = max(self._num_tokens, 1.0)
        return {
            "grad_norm": self.grad_norms[-1] if self.grad_norms else 0.0,
            "updates": len(self.grad_norms),
            "clip_low": self._num_low / tokens,
            "clip_high": self._num_high / tokens,
        }


def learn(
    accelerator: Accelerator,
    learner: Any,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[Rows],
    weights: Sequence[Tensor],
    references: Sequence[Tensor | None],
    kl_weight: float,
    params: OnlineParams,
) -> Updates:
    """Make `updates_per_step` optimizer steps on these rows. `weights` and `references`, log-probs
    by the model that training began from where they are asked for, belong to the parts."""
    updates = Updates()
    updates.parts = parts
    places = range(len(parts))

    def loss_of(place: int) -> tuple[Tensor, Tensor]:
        rows = parts[place].to(accelerator.device)
        now = scored(learner, rows, params.temperature, with_entropies=params.entropy_bonus > 0)
        before_N_T = updates.before[place] if updates.before else now.logprobs.detach()
        loss = part_loss(
            now,
            before_N_T,
            rows,
            weights[place].to(accelerator.device),
            params,
            reference_N_T=references[place],
            kl_weight=kl_weight,
        )
        return loss * processes.count(), now.logprobs.detach()  # gradients are averaged over them

    for _ in range(params.updates_per_step):
        logprobs = add_gradients(learner, loss_of, places, backward=accelerator.backward)
        updates.before = updates.before or logprobs
        for place in places:
            updates.hear(logprobs[place] - updates.before[place], parts[place].to(accelerator.device), params)
        updates.grad_norms.append(float(accelerator.clip_grad_norm_(learner.parameters(), MAX_GRAD_NORM)))
        optimizer.step()
        optimizer.zero_grad()
    return updates


def without_dropout(model: nn.Module) -> None:
    """A ratio of probabilities would be one of two random networks' with it."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
