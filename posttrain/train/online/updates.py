"""Batches and optimizer steps: a step's episodes as padded tensors, their log-probabilities,
loss and gradients."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from posttrain.models import distributed
from posttrain.models.micro_batches import NO_LIMIT, AtOnce, cut_alike, dealt
from posttrain.models.params import MAX_GRAD_NORM
from posttrain.models.parts import add_gradients, in_threads
from posttrain.models.token_logprobs import IGNORED, TokenScores, agent_scores, labels_of, pad_right
from posttrain.train.advantages.groups import FloatArray
from posttrain.train.losses import NoKl, clip_side, expert_losses, importance_weights, kl_estimates, token_losses
from posttrain.train.online.params import LossMean, OnlineParams
from posttrain.train.replay import EditReplay, ExpertReplay
from posttrain.train.roles import num_written
from posttrain.types import ROLES, WORKER, ScoredEpisode

NUM_MICRO_BATCHES = 8  # of a process's share of a step: rows of one length stand together, little is padding


@dataclass(frozen=True, slots=True)
class Sample:
    """An episode with an advantage for each of the agent's tokens. `is_expert`: an expert wrote
    it, so there are no log-probabilities."""

    episode: ScoredEpisode
    advantages_T: FloatArray
    is_expert: bool = False

    @property
    def is_idle(self) -> bool:
        return not self.advantages_T.any()


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right. Labels are the ids where the agent wrote them, else `IGNORED`;
    (N, T-1) are of token t+1 in column t, 0 where not the agent's. `lengths_N`: tokens that the
    row's role wrote in the whole episode; `roles_N`: its place in `ROLES`. `places_N`: places among
    the step's samples, -1 of an idle row, which has no token of the agent's; `windows_N`: the
    number of the context window (`agent.memory`, `agent.worker`)."""

    input_ids_N_T: Tensor
    labels_N_T: Tensor
    advantages_N_T: Tensor
    engine_logprobs_N_T: Tensor
    lengths_N: Tensor
    is_expert_N: Tensor
    places_N: Tensor
    windows_N: Tensor
    roles_N: Tensor

    @property
    def is_scored_N_T(self) -> Tensor:  # noqa: N802 — a shape is a capital
        return self.labels_N_T[:, 1:] != IGNORED

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))


def batch_of(samples: Sequence[Sample], *, pad_id: int) -> Batch:
    """A row per context window of each sample; two padding tokens for an episode without a
    token."""
    windows = [
        (place, number, one, part)
        for place, one in enumerate(sample.episode.trajectory for sample in samples)
        for number, part in enumerate(one.windows)
    ]
    written = [num_written(sample.episode.trajectory) for sample in samples]
    roles = [one.roles[number] for _, number, one, _ in windows]
    # a loss is of tokens from the second on: a row has two at least
    ids = [list(one.token_ids[part]) or [pad_id, pad_id] for _, _, one, part in windows]
    masks = [list(one.mask[part]) or [0, 0] for _, _, one, part in windows]
    logprobs = [
        list(one.logprobs[part]) or [0.0] * len(own) for (_, _, one, part), own in zip(windows, ids, strict=True)
    ]
    labels_N_T = pad_right([labels_of(*both) for both in zip(ids, masks, strict=True)], IGNORED)
    is_scored_N_T = labels_N_T[:, 1:] != IGNORED
    # rows after each other, as masked_scatter fills a mask
    advantages = np.concatenate([one.advantages_T for one in samples])
    return Batch(
        input_ids_N_T=pad_right(ids, pad_id).long(),
        labels_N_T=labels_N_T.long(),
        advantages_N_T=torch.zeros(is_scored_N_T.shape).masked_scatter(
            is_scored_N_T, torch.tensor(advantages, dtype=torch.float32)
        ),
        engine_logprobs_N_T=torch.where(is_scored_N_T, pad_right(logprobs, 0)[:, 1:].float(), 0.0),
        lengths_N=torch.tensor([written[place][role] for (place, *_), role in zip(windows, roles, strict=True)]),
        is_expert_N=torch.tensor([samples[place].is_expert for place, *_ in windows]),
        places_N=torch.tensor([place for place, *_ in windows]),
        windows_N=torch.tensor([number for _, number, *_ in windows]),
        roles_N=torch.tensor([ROLES.index(role) for role in roles]),
    )


def own_micro_batches(samples: Sequence[Sample], pad_id: int, at_once: AtOnce = NO_LIMIT) -> list[Batch]:
    """This process's share of `samples`, in micro-batches of one length within `at_once`: as many
    in every process."""
    batch = batch_of(samples, pad_id=pad_id)
    if at_once.tokens is not None:
        return split_by_tokens(batch, at_once)
    share = len(samples) / distributed.count()
    # a step's rows are the same however they are cut: its loss is a sum over all
    count = min(NUM_MICRO_BATCHES, max(int(share), 1))
    if at_once.rows is not None:
        # of the largest share, though a smaller one may then have fewer rows than micro-batches
        count = math.ceil(math.ceil(share) / at_once.rows)
    return split_by_length(batch, count)


def split_by_tokens(batch: Batch, at_once: AtOnce) -> list[Batch]:
    """This process's rows in micro-batches within the limits, the longest first. All processes have
    about as many tokens."""
    widths = (_last_places(batch) + 1).clamp(min=2).tolist()
    by_length = sorted(range(len(widths)), key=lambda row: -widths[row])
    shares = [[by_length[place] for place in own] for own in dealt(len(widths), distributed.count())]
    parts = cut_alike([[widths[row] for row in own] for own in shares], at_once)[distributed.index()]
    own = [[shares[distributed.index()][place] for place in part] for part in parts]
    return [_cut(batch, torch.tensor(rows), max(widths[row] for row in rows)) if rows else _idle(batch) for rows in own]


def split_by_length(batch: Batch, num_micro_batches: int) -> list[Batch]:
    """This process's rows in micro-batches of rising length, without columns that are all
    padding; with fewer rows some have an idle one."""
    # consecutive rows, so that processes together have the step in its order
    own = np.array_split(np.arange(len(batch.places_N)), distributed.count())[distributed.index()]
    last_N = _last_places(batch)[torch.from_numpy(own)]
    return [
        _cut(batch, torch.from_numpy(own)[places], int(last_N[places].max()) + 1) if len(places) else _idle(batch)
        for places in torch.argsort(last_N, stable=True).tensor_split(num_micro_batches)
    ]


def by_place(micro_batches: Sequence[Batch], values: Sequence[Tensor]) -> Mapping[int, FloatArray]:
    """Gather `values` (N, T-1) of all processes: for each sample's place a number per agent
    token."""
    own = {
        (int(place), int(window)): value_T[is_scored_T].double().numpy()
        for batch, value_N_T in zip(micro_batches, values, strict=True)
        for place, window, value_T, is_scored_T in zip(
            batch.places_N, batch.windows_N, value_N_T.cpu(), batch.is_scored_N_T, strict=True
        )
    }
    windows = {key: value for of_process in distributed.gather(own) for key, value in of_process.items()}
    found: dict[int, list[FloatArray]] = {}
    for (place, _), value in sorted(windows.items(), key=lambda one: one[0]):
        found.setdefault(place, []).append(value)
    return {place: np.concatenate(parts) for place, parts in found.items()}


def samples_with_signal(samples: Sequence[Sample], params: OnlineParams) -> list[Sample]:
    """Those with an advantage, and as many idle ones as give every process a row; all where KL
    or entropy are part of the loss."""
    if has_loss_everywhere(params):
        return list(samples)
    kept, idle = [one for one in samples if not one.is_idle], [one for one in samples if one.is_idle]
    return kept + idle[: max(distributed.count() - len(kept), 0)]


def minibatches_of(
    groups: Sequence[Sequence[Sample]], params: OnlineParams, *, seed: int, step: int
) -> list[list[Sample]]:
    """Samples of each optimizer step of a pass: those of whole groups, as many groups in each but
    for a step that has fewer than `tasks_per_step`. Parts without a signal are left out."""
    order = np.arange(len(groups))
    if params.minibatches > 1:
        # four numbers, which no other draw from the run's seed has
        order = np.random.default_rng([seed, step, 0, 1]).permutation(order)
    parts = [[one for place in own for one in groups[place]] for own in np.array_split(order, params.minibatches)]
    return [part for part in parts if has_signal(part, params)]


def has_signal(samples: Sequence[Sample], params: OnlineParams) -> bool:
    return bool(samples) and (has_loss_everywhere(params) or not all(one.is_idle for one in samples))


def has_loss_everywhere(params: OnlineParams) -> bool:
    """True if episodes without an advantage have a loss, too."""
    return params.kl.type != "none" or params.entropy_bonus > 0


def weights_of(
    micro_batches: Sequence[Batch], samples: Sequence[Sample], params: OnlineParams, max_context_tokens: int
) -> list[Tensor]:
    """Weights of each micro-batch's rows, (N,), in the loss of an optimizer step, which is the sum
    of each role's mean. `samples`: all of that step's minibatch, of every process, also those
    without a signal."""
    written = [num_written(one.episode.trajectory) for one in samples]
    num_delegating = sum(WORKER in one.episode.trajectory.window_roles for one in samples)
    planner, worker = (
        {"num_tokens": sum(one[role] for one in written), "num_episodes": num, "max_tokens": max_context_tokens}
        for role, num in zip(ROLES, (len(samples), max(num_delegating, 1)), strict=True)
    )

    def weights(batch: Batch) -> Tensor:
        of_planner, of_worker = (
            token_weights(batch.lengths_N, average=params.average, **one) for one in (planner, worker)
        )
        return torch.where(batch.roles_N == ROLES.index(WORKER), of_worker, of_planner)

    return [weights(batch) for batch in micro_batches]


def token_weights(
    lengths_N: Tensor, *, average: LossMean, num_tokens: int, num_episodes: int, max_tokens: int
) -> Tensor:
    """Weight of a token's loss in the minibatch's, shape (N,), by the counts of all of it.

    Of two episodes with 1 and 3 tokens: `tokens` (DAPO) 1/4 each; `episodes` (GRPO) 1/2 and 1/6;
    `max_tokens` (Dr. GRPO, arXiv 2503.20783) 1/(2 · max_tokens) each.
    """
    match average:
        case "tokens":
            return torch.full_like(lengths_N, 1 / max(num_tokens, 1), dtype=torch.float32)
        case "episodes":
            return 1 / (lengths_N.clamp(min=1).float() * num_episodes)
        case "max_tokens":
            return torch.full_like(lengths_N, 1 / (num_episodes * max_tokens), dtype=torch.float32)


def score(model: Any, batch: Batch, temperature: float, *, with_entropies: bool = False) -> TokenScores:
    ids, labels = batch.input_ids_N_T, batch.labels_N_T
    return agent_scores(model, ids, labels, temperature=temperature, with_entropies=with_entropies)


def batch_loss(
    now: TokenScores,
    before_N_T: Tensor,
    batch: Batch,
    weight_N: Tensor,
    params: OnlineParams,
    *,
    reference_N_T: Tensor | None = None,
    kl_weight: float = 0.0,
) -> Tensor:
    """A micro-batch's share of the step's loss. Log-probs: `now` by the weights as they are,
    `before` as the step's first update began, `reference` by the model that training began from."""
    # a constant: `before` has no gradient
    importance_N_T = importance_weights(before_N_T, batch.engine_logprobs_N_T, cap=params.importance_cap)
    losses_N_T = token_losses(
        now.logprobs - before_N_T,
        batch.advantages_N_T * importance_N_T,
        params.objective,
        is_scored_N_T=batch.is_scored_N_T,
    )
    if isinstance(params.join, ExpertReplay | EditReplay):
        expert_N_T = expert_losses(now.logprobs, batch.advantages_N_T, gamma=params.join.gamma)
        # an expert's tokens have no ratio: nobody knows the probability that it wrote them with
        losses_N_T = torch.where(batch.is_expert_N[:, None], expert_N_T, losses_N_T)
    if reference_N_T is not None and not isinstance(params.kl, NoKl):
        divergence_N_T = kl_estimates(now.logprobs, reference_N_T, before_N_T, params.kl.estimator)
        losses_N_T = losses_N_T + kl_weight * divergence_N_T
    if now.entropies is not None and params.entropy_bonus:
        losses_N_T = losses_N_T - params.entropy_bonus * now.entropies
    return (losses_N_T * batch.is_scored_N_T * weight_N[:, None]).sum()


class Updates:
    """Record of a step's updates. `micro_batches`: those trained on; `before`: their log-probs
    as the first update began."""

    def __init__(self) -> None:
        self.micro_batches: Sequence[Batch] = ()
        self.before: list[Tensor] = []
        self.grad_norms: list[float] = []
        self.is_skipped: list[bool] = []
        self._num_tokens = self._num_low = self._num_high = 0.0

    def observe(self, log_ratio_N_T: Tensor, batch: Batch, params: OnlineParams) -> None:
        """Count clipped tokens."""
        is_scored_N_T, log_ratio_N_T = batch.is_scored_N_T, log_ratio_N_T.detach()
        side_N_T = clip_side(log_ratio_N_T, batch.advantages_N_T, params.objective, is_scored_N_T=is_scored_N_T)
        side = side_N_T.expand_as(is_scored_N_T)[is_scored_N_T]
        self._num_tokens += side.numel()
        self._num_low += float((side < 0).sum())
        self._num_high += float((side > 0).sum())

    def metrics(self) -> dict[str, float]:
        """`grad_norm`: of the last update, before clipping. `skipped_updates`: those not made
        because that was not finite. `clip_low`, `clip_high`: shares of this process's tokens whose
        ratio was held."""
        tokens = max(self._num_tokens, 1.0)
        return {
            "grad_norm": self.grad_norms[-1] if self.grad_norms else 0.0,
            "updates": len(self.is_skipped) - sum(self.is_skipped),
            "skipped_updates": sum(self.is_skipped),
            "clip_low": self._num_low / tokens,
            "clip_high": self._num_high / tokens,
        }


def learn(
    accelerator: Accelerator,
    learner: Any,
    optimizer: torch.optim.Optimizer,
    minibatches: Sequence[Sequence[Batch]],
    weights: Sequence[Tensor],
    references: Sequence[Tensor | None],
    params: OnlineParams,
    *,
    kl_weight: float,
    max_grad_norm: float = MAX_GRAD_NORM,
) -> Updates:
    """Make `updates_per_step` passes of an optimizer step on each minibatch, which is its
    micro-batches; none by a gradient whose norm is not finite: weights and momentum stay as they
    are. `weights`, `references`: of each micro-batch in turn, the latter the log-probs by the model
    that training began from, for the KL term."""
    updates = Updates()
    updates.micro_batches = micro_batches = [batch for own in minibatches for batch in own]
    ends = itertools.accumulate(map(len, minibatches))

    @torch.no_grad()
    def logprobs_of(batch: Batch) -> Tensor:
        return score(learner, batch.to(accelerator.device), params.temperature).logprobs

    def loss_of(place: int) -> tuple[Tensor, Tensor]:
        batch = micro_batches[place].to(accelerator.device)
        now = score(learner, batch, params.temperature, with_entropies=params.entropy_bonus > 0)
        # in the first update the ratio is exp(0) = 1, exactly
        before_N_T = updates.before[place] if updates.before else now.logprobs.detach()
        loss = batch_loss(
            now,
            before_N_T,
            batch,
            weights[place].to(accelerator.device),
            params,
            reference_N_T=references[place],
            kl_weight=kl_weight,
        )
        return loss * distributed.count(), now.logprobs.detach()  # gradients are averaged over processes

    if len(minibatches) > 1:
        # of all, before the first update moves the policy: ratios are to where the step began
        updates.before = list(in_threads(logprobs_of, micro_batches))
    passes = [range(end - len(own), end) for own, end in zip(minibatches, ends, strict=True)] * params.updates_per_step
    for places in passes:
        # gradients of all micro-batches add up before the one step
        logprobs = add_gradients(learner, loss_of, places, backward=accelerator.backward)
        # of the first update: later ones are compared with where the step began
        updates.before = updates.before or logprobs
        for place, now in zip(places, logprobs, strict=True):
            updates.observe(now - updates.before[place], micro_batches[place].to(accelerator.device), params)
        updates.grad_norms.append(float(accelerator.clip_grad_norm_(learner.parameters(), max_grad_norm)))
        # all processes make the step, or none
        is_finite = all(map(math.isfinite, distributed.gather(updates.grad_norms[-1])))
        updates.is_skipped.append(not is_finite)
        if is_finite:
            optimizer.step()
        optimizer.zero_grad()
    return updates


def without_dropout(model: nn.Module) -> None:
    """Turn dropout off: with it a ratio of probabilities would be one of two random networks'."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def _last_places(batch: Batch) -> Tensor:
    """The place of each row's last token of the agent's, (N,): nothing behind it has a loss."""
    places_N_T = (batch.labels_N_T != IGNORED).long() * torch.arange(batch.labels_N_T.shape[1])
    return places_N_T.max(1).values


def _cut(batch: Batch, places: Tensor, width: int) -> Batch:
    """Rows up to `width`: no loss depends on tokens behind the agent's last one."""
    width = max(width, 2)
    return Batch(
        batch.input_ids_N_T[places, :width],
        batch.labels_N_T[places, :width],
        batch.advantages_N_T[places, : width - 1],
        batch.engine_logprobs_N_T[places, : width - 1],
        batch.lengths_N[places],
        batch.is_expert_N[places],
        batch.places_N[places],
        batch.windows_N[places],
        batch.roles_N[places],
    )


def _idle(batch: Batch) -> Batch:
    """The beginning of a row, of which nothing is learnt: no model takes a batch without a row, and
    processes exchange gradients in every pass."""
    ids, nothing = batch.input_ids_N_T[:1, :2], torch.zeros(1, 1)
    return Batch(
        input_ids_N_T=ids,
        labels_N_T=torch.full_like(ids, IGNORED),
        advantages_N_T=nothing,
        engine_logprobs_N_T=nothing,
        lengths_N=torch.tensor([0]),
        is_expert_N=torch.tensor([False]),
        places_N=torch.tensor([-1]),
        windows_N=torch.tensor([0]),
        roles_N=torch.tensor([0]),
    )
