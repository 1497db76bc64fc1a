"""Trains a policy on its own episodes: tasks are chosen and played, each episode is credited with
how much better it was than expected, and the policy is moved towards what was better.

One function from top to bottom, on accelerate. Of several processes each plays its share of a step
and learns from it; all hear of all episodes, so that credit and metrics are those of one process. A
step in which nothing has an advantage makes no optimizer step: the weights stay as they are, bit by
bit, and so does an optimizer's momentum.

Left out: a critic, and a KL term in the loss.
"""

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from posttrain.algorithms import processes, sharding
from posttrain.algorithms.episode_sampler import episode_seeds
from posttrain.algorithms.grpo_metrics import kl_estimate, step_metrics
from posttrain.algorithms.importance import importance_metrics, importance_weights, turn_numbers
from posttrain.algorithms.resumable import TrainingRun
from posttrain.algorithms.rollouts import EpisodeSource, RolloutBatch, RolloutSchedule, ScoredEpisode
from posttrain.algorithms.sharding import learner_of
from posttrain.algorithms.token_logprobs import IGNORED, agent_logprobs, can_pick_before_head, labels_of, pad_right
from posttrain.evals.groups import are_equal
from posttrain.exits import Interrupted
from posttrain.models.codec import TokenRow
from posttrain.models.optimizers import OptimizerKind, build_optimizer
from posttrain.rl import checkpoints
from posttrain.rl.credit.episode import Group, episode_advantages
from posttrain.rl.credit.history import TaskHistory
from posttrain.rl.objective.token_losses import held_side, token_losses, token_weights
from posttrain.rl.params import OnlineParams, TaskMean, Weighted
from posttrain.rl.rows import Rows, parts_by_length, rows_of
from posttrain.rl.sampling.choice import Sampler, make_sampler
from posttrain.types import Task

MAX_GRAD_NORM = 1.0

Hear = Callable[[int, Sequence[ScoredEpisode], Sequence[float]], None]  # a step, its episodes, their advantages


@dataclass(frozen=True, slots=True)
class Setup:
    """What a training is made of besides its knobs."""

    tasks: Sequence[Task]
    source: EpisodeSource
    demonstrations: Sequence[TokenRow] = ()
    on_step: Hear = lambda *_: None


def train_online(  # noqa: C901 — one loop, to be read from top to bottom
    model: Any,
    tokenizer: Any,
    setup: Setup,
    *,
    params: OnlineParams,
    max_context_tokens: int,
    lr: float,
    optimizer: OptimizerKind,
    checkpoint_every_steps: int,
    seed: int,
    run: TrainingRun,
) -> None:
    """Train `model` in place on the episodes of `setup.source`, which plays with its weights. The
    rate falls to 0 in a line. Resumes from `run.checkpoint` where there is one.

    `setup.on_step` hears of a step's episodes before they are learnt from; the metrics tell the
    loss on the demonstrations, where there are any.
    """
    without_dropout(model)
    reference = None if hasattr(model, "disable_adapter") else copy.deepcopy(model).eval().requires_grad_(False)
    learner = learner_of(model, optimizer)
    moved = build_optimizer(learner, optimizer, lr)
    accelerator = Accelerator()
    processes.refuse_another_count(accelerator.num_processes)
    learner, prepared = accelerator.prepare(learner, moved)
    moved = prepared.optimizer
    rates = [group["lr"] for group in moved.param_groups]
    if reference is not None:
        reference.to(accelerator.device)

    sampler = make_sampler(params.sampling, setup.tasks, seed=seed)
    history = TaskHistory(_decay(params))
    first = 0
    if run.checkpoint is not None:
        state = checkpoints.load(run.checkpoint, whole=model, optimizer=moved)
        if processes.is_sharded():
            sharding.scatter_weights(model, learner)
        first = state["step"]
        sampler.restore(state["sampler"])
        history = TaskHistory.of_state(state["history"])

    with RolloutSchedule(setup.source) as rollouts:
        for step in range(first, params.max_steps):
            played, staleness = _play(rollouts, sampler, params, seed=seed, step=step)
            groups = _groups(played, params.group_size)
            is_trained = _chosen_groups(groups, params)
            advantages = _of_episodes(episode_advantages(groups, params.credit, history), played, params.group_size)
            for group in groups:
                history.add(group.task_id, group.rewards_G)
            if processes.is_first():
                setup.on_step(step + 1, played, advantages)
            metrics = {
                **_metrics_of(played, advantages, params.group_size),
                **_sampling_metrics(groups, is_trained),
                "kl": _kl(reference, learner, played[:: params.group_size], tokenizer, params.temperature),
                "staleness": staleness,
            }
            if setup.demonstrations:
                metrics["demonstration_loss"] = _loss_on(learner, setup.demonstrations, tokenizer)
            learnt = [
                (one, advantage)
                for place, (one, advantage) in enumerate(zip(played, advantages, strict=True))
                if is_trained[place // params.group_size]
            ]

            for group, rate in zip(moved.param_groups, rates, strict=True):
                group["lr"] = rate * (1 - step / params.max_steps)
            updates = _Updates()
            if any(advantage for _, advantage in learnt):
                parts = _own_parts(learnt, tokenizer.pad_token_id)
                weights = _weights(parts, [one for one, _ in learnt], params, max_context_tokens)
                before: list[Tensor] = []  # the log-probs by the weights that the first update starts from
                for _ in range(params.updates_per_step):
                    for index, (part, weight_N) in enumerate(zip(parts, weights, strict=True)):
                        rows = part.to(accelerator.device)
                        now = _logprobs(learner, rows, params.temperature)
                        if len(before) == index:
                            before.append(now.detach())
                        updates.hear(now - before[index], rows, params)
                        loss = part_loss(now, before[index], rows, weight_N.to(accelerator.device), params)
                        accelerator.backward(loss * processes.count())  # gradients are averaged over them
                    updates.grad_norms.append(float(accelerator.clip_grad_norm_(learner.parameters(), MAX_GRAD_NORM)))
                    moved.step()
                    moved.zero_grad()
                metrics |= _importance(before, parts, params)
            else:
                metrics |= importance_metrics([], [], cap=params.importance_cap)
            if processes.is_sharded():
                sharding.gather_weights(learner, model)

            done = step + 1
            checkpoints.write_metrics(run, done, {**metrics, **updates.metrics(), "lr": moved.param_groups[0]["lr"]})
            is_stopping = any(processes.gather(run.is_stopping))
            if is_stopping or done % checkpoint_every_steps == 0 or done == params.max_steps:
                state = {"sampler": sampler.state(), "history": history.state()}
                checkpoints.save(run, done, whole=model, optimizer=moved, state=state)
            run.progress(done, params.max_steps, "")
            if is_stopping and done < params.max_steps:
                raise Interrupted(
                    f"asked to stop after step {done} of {params.max_steps}; a checkpoint of it is kept: "
                    "run again to go on from there"
                )


_STREAM = 0x6F6E6C  # tells the seeds of these episodes from those of evaluation and preferences


class _Updates:
    """What the optimizer steps of one step came to."""

    def __init__(self) -> None:
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


def part_loss(now_N_T: Tensor, before_N_T: Tensor, rows: Rows, weight_N: Tensor, params: OnlineParams) -> Tensor:
    """What these rows add to the step's loss. `now` and `before`: log-probs of the agent's tokens
    by the weights as they are and as they were before the step's first update."""
    trusted_N_T = importance_weights(before_N_T, rows.engine_logprobs_N_T, cap=params.importance_cap)
    losses_N_T = token_losses(
        now_N_T - before_N_T, rows.advantages_N_T * trusted_N_T, params.objective, is_scored_N_T=rows.is_scored_N_T
    )
    return (losses_N_T * rows.is_scored_N_T * weight_N[:, None]).sum()


def without_dropout(model: nn.Module) -> None:
    """A ratio of probabilities would be one of two random networks' with it."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def _decay(params: OnlineParams) -> float:
    baseline = params.credit.baseline
    return baseline.decay if isinstance(baseline, TaskMean | Weighted) else 0.0


def _play(
    rollouts: RolloutSchedule, sampler: Sampler, params: OnlineParams, *, seed: int, step: int
) -> tuple[list[ScoredEpisode], int]:
    """The episodes of a step, a group after the other, and by how many steps their weights are
    older. More tasks are played while groups that differ are missing and refills are left."""
    played: list[ScoredEpisode] = []
    missing, staleness = params.tasks_per_step, 0
    for refill in range(1 + params.sampling.max_refills):
        tasks = sampler.choose(-(-missing // processes.count()) * processes.count())
        batch = RolloutBatch(
            [task for task in tasks for _ in range(params.group_size)],
            episode_seeds(seed, _STREAM, step, refill, count=len(tasks) * params.group_size),
        )
        more, staleness = rollouts.take(batch)
        for group in _groups(more, params.group_size):
            has_spread = _has_spread(group)
            sampler.observe(group.task_id, has_spread=has_spread)
            missing -= has_spread
        played += more
        if missing <= 0:
            break
    return played, staleness


def _chosen_groups(groups: Sequence[Group], params: OnlineParams) -> list[bool]:
    """Of each group whether it is trained: with refills the first that differ, as many as a step
    has; all of them otherwise."""
    if not params.sampling.max_refills:
        return [True] * len(groups)
    num_before = np.cumsum([0, *map(_has_spread, groups)])
    return [_has_spread(group) and num_before[place] < params.tasks_per_step for place, group in enumerate(groups)]


def _has_spread(group: Group) -> bool:
    return len(group.rewards_G) > 1 and not are_equal(group.rewards_G)


def _sampling_metrics(groups: Sequence[Group], is_trained: Sequence[bool]) -> dict[str, float]:
    """`groups_played` and `groups_trained`; `frac_equal_trained`: share of the latter whose rewards
    are equal. Of those played it is `frac_reward_zero_std`."""
    trained = [group for group, is_one in zip(groups, is_trained, strict=True) if is_one]
    num_equal = sum(not _has_spread(group) for group in trained)
    return {
        "groups_played": len(groups),
        "groups_trained": len(trained),
        "frac_equal_trained": num_equal / len(trained) if trained else 0.0,
    }


def _groups(played: Sequence[ScoredEpisode], group_size: int) -> list[Group]:
    """The members of each group that were not lost."""
    kept = [
        [one for one in played[start : start + group_size] if not one.is_lost]
        for start in range(0, len(played), group_size)
    ]
    return [
        Group(
            played[place * group_size].trajectory.task_id,
            np.array([one.rule_reward + one.bonus for one in members], dtype=np.float64),
            np.array([one.is_success for one in members], dtype=np.bool_),
        )
        for place, members in enumerate(kept)
    ]


def _of_episodes(found: Sequence[Any], played: Sequence[ScoredEpisode], group_size: int) -> list[float]:
    """One advantage for each episode, 0 for those that were lost."""
    left = [iter(advantages_G.tolist()) for advantages_G in found]
    return [0.0 if one.is_lost else next(left[place // group_size]) for place, one in enumerate(played)]


def _metrics_of(played: Sequence[ScoredEpisode], advantages: Sequence[float], group_size: int) -> dict[str, float]:
    shape = (-1, group_size)
    return step_metrics(
        played,
        rule_rewards_P_G=np.array([one.rule_reward for one in played]).reshape(shape),
        is_lost_P_G=np.array([one.is_lost for one in played]).reshape(shape),
        advantages_P_G=np.array(advantages).reshape(shape),
    )


def _own_parts(rows: Sequence[tuple[ScoredEpisode, float]], pad_id: int) -> list[Rows]:
    """This process's share of the rows with an advantage, in parts of one length: others have no
    gradient. Every process has as many parts as every other, each with a row."""
    teaching, idle = [row for row in rows if row[1]], [row for row in rows if not row[1]]
    num_parts = min(processes.NUM_PARTS, len(rows) // processes.count())
    kept = teaching + idle[: max(num_parts * processes.count() - len(teaching), 0)]
    own = np.array_split(np.arange(len(kept)), processes.count())[processes.index()]
    episodes, advantages = zip(*(kept[place] for place in own), strict=True)
    return parts_by_length(rows_of(episodes, advantages, pad_id=pad_id), num_parts)


def _weights(
    parts: Sequence[Rows], played: Sequence[ScoredEpisode], params: OnlineParams, max_context_tokens: int
) -> list[Tensor]:
    kept = [one for one in played if not one.is_lost]
    num_tokens = sum(sum(one.trajectory.mask) for one in kept)
    return [
        token_weights(
            part.lengths_N,
            average=params.average,
            num_tokens=num_tokens,
            num_episodes=len(kept),
            max_tokens=max_context_tokens,
        )
        for part in parts
    ]


def _logprobs(model: Any, rows: Rows, temperature: float) -> Tensor:
    """Of each token of the agent's given what stands before it, shape (N, T-1), 0 elsewhere."""
    if can_pick_before_head(model, rows.input_ids_N_T):
        return agent_logprobs(model, rows.input_ids_N_T, rows.labels_N_T, temperature=temperature)
    is_scored_N_T = rows.is_scored_N_T
    logits = model(input_ids=rows.input_ids_N_T, use_cache=False).logits[:, :-1][is_scored_N_T]
    targets = rows.labels_N_T[:, 1:][is_scored_N_T]
    picked = -torch.nn.functional.cross_entropy(logits.float() / temperature, targets, reduction="none")
    return torch.zeros(is_scored_N_T.shape, dtype=picked.dtype, device=picked.device).masked_scatter(
        is_scored_N_T, picked
    )


def _importance(before: Sequence[Tensor], parts: Sequence[Rows], params: OnlineParams) -> dict[str, float]:
    """Of the log-probs before the first update against the engine's, of all processes."""
    ratios, turns = [], []
    for logprobs, part in zip(before, parts, strict=True):
        is_scored_N_T = part.is_scored_N_T
        ratios += (logprobs.cpu() - part.engine_logprobs_N_T)[is_scored_N_T].tolist()
        turns += turn_numbers(is_scored_N_T)[is_scored_N_T].tolist()
    return importance_metrics(
        [ratio for of_process in processes.gather(ratios) for ratio in of_process],
        [turn for of_process in processes.gather(turns) for turn in of_process],
        cap=params.importance_cap,
    )


def _kl(reference: Any, learner: Any, played: Sequence[ScoredEpisode], tokenizer: Any, temperature: float) -> float:
    """To the model that training began from, on the first episode of each group: a sixteenth of the
    tokens tells it well enough."""
    rows = rows_of(played, [0.0] * len(played), pad_id=tokenizer.pad_token_id)
    inner = learner.module if isinstance(learner, DistributedDataParallel) else learner
    model = inner if reference is None else reference
    adapters_off = model.disable_adapter() if reference is None else contextlib.nullcontext()
    with torch.no_grad(), adapters_off:
        logprobs = _logprobs(model, rows.to(next(model.parameters()).device), temperature).cpu()
    is_scored_N_T = rows.is_scored_N_T
    return kl_estimate(rows.engine_logprobs_N_T[is_scored_N_T].tolist(), logprobs[is_scored_N_T].tolist())


def _loss_on(model: Any, demonstrations: Sequence[TokenRow], tokenizer: Any) -> float:
    """Mean loss per agent token, as supervised fine-tuning has it."""
    input_ids = pad_right([row.input_ids for row in demonstrations], tokenizer.pad_token_id)
    labels = pad_right([labels_of(row.input_ids, row.mask) for row in demonstrations], IGNORED)
    zeros = torch.zeros(labels[:, 1:].shape)
    rows = Rows(input_ids, labels, zeros, zeros, (labels[:, 1:] != IGNORED).sum(1))
    with torch.no_grad():
        logprobs = _logprobs(model, rows.to(next(model.parameters()).device), 1.0)
    return float(-logprobs.double().sum() / rows.lengths_N.sum())
